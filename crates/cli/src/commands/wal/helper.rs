//! `wal push` and `wal get` by way of the helper, and the helper itself: `wal serve`.

use pagehaul_engine::error::{Error, Result};
use pagehaul_engine::pipeline::Observer;
use pagehaul_engine::wal::helper::{self, Heard, HelperSettings};
use pagehaul_engine::wal::{GetRequest, PushRequest};

use crate::args::HelperArgs;
use crate::exit_code::ExitCode;
use crate::output;
use crate::progress::Console;

/// Has the helper archive the one file of `request`; None if this process is to do it.
pub(super) fn push(args: &HelperArgs, repo: &str, request: &PushRequest) -> Result<Option<Result<()>>> {
    if args.no_helper {
        return Ok(None);
    }
    let Some((settings, name)) = HelperSettings::of_push(repo, request, args.idle_s()?)? else {
        tell_alone(args, "it helps with one file of a pg_wal directory");
        return Ok(None);
    };
    Ok(answer(args, helper::push(&settings, &name, &helper::start_program)))
}

/// Has the helper deliver the file that `request` names, false if it is not there; None if this process is to do it.
pub(super) fn get(args: &HelperArgs, repo: &str, request: &GetRequest) -> Result<Option<Result<bool>>> {
    if args.no_helper {
        return Ok(None);
    }
    let Some(settings) = HelperSettings::of_get(repo, request, args.idle_s()?)? else {
        tell_alone(args, "it helps with destinations in a pg_wal directory");
        return Ok(None);
    };
    Ok(answer(args, helper::get(&settings, &request.name, &request.destination, &helper::start_program)))
}

fn answer<T>(args: &HelperArgs, heard: Heard<T>) -> Option<Result<T>> {
    match heard {
        Heard::Answer(answer) => Some(answer),
        Heard::Alone(why) => {
            tell_alone(args, &reason(&why));
            None
        }
    }
}

fn reason(why: &Error) -> String {
    let hint = why.hint_text().map_or_else(String::new, |hint| format!(" ({hint})"));
    why.message() + &hint
}

/// Not a word without --verbose: the server writes what is said into its log, once a segment.
fn tell_alone(args: &HelperArgs, why: &str) {
    if args.verbose {
        output::say(&format!("note: done without the helper: {why}"));
    }
}

/// Is the helper, until nobody asks any more. Its settings come by standard input, and standard output says when it can
/// be asked.
pub(super) fn serve(console: &Console) -> Result<ExitCode> {
    let settings = HelperSettings::read(std::io::stdin().lock())?;
    helper::detach();
    helper::serve(&settings, &mut std::io::stdout().lock(), &|| console.interrupted())?;
    Ok(ExitCode::Done)
}
