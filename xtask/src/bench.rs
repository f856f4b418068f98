//! `cargo xtask bench NAME`: measured runs, each paired with a baseline.

use std::process::ExitCode;

/// A bench by name: takes the words after it on the command line.
type Bench = (&'static str, fn(&[&str]) -> ExitCode);

/// Every bench there is. A new one is a module with a `run` and a line here.
const BENCHES: &[Bench] = &[];

/// Runs the bench named by the first word; an unknown name is a usage error that lists the known ones.
pub(crate) fn run(args: &[&str]) -> ExitCode {
    let Some((name, rest)) = args.split_first() else {
        return crate::usage_error(&format!("usage: cargo xtask bench NAME\n{}", known()));
    };
    match BENCHES.iter().find(|(known, _)| known == name) {
        Some((_, bench)) => bench(rest),
        None => crate::usage_error(&format!("unknown bench `{name}`\n{}", known())),
    }
}

fn known() -> String {
    let names: Vec<&str> = BENCHES.iter().map(|(name, _)| *name).collect();
    if names.is_empty() { "there are no benches yet".to_owned() } else { format!("benches: {}", names.join(", ")) }
}
