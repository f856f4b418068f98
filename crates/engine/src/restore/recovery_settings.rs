//! The lines that a restore appends to postgresql.auto.conf. They override all that stands before them: what an earlier
//! restore, or the original server, left in there must not decide how far this one replays.

use std::path::Path;

use super::end_of_set::EndOfSet;
use super::recovery_target::{RecoveryTarget, TargetAction, TargetTimeline};
use crate::catalog::recovery_mark::RecoveryMark;
use crate::error::{Error, ErrorKind, Result};
use crate::terms::{BackupLabel, SourceName};

/// Settings that name a target; the server accepts one that is not empty, and wants it last.
const TARGET_SETTINGS: [&str; 5] =
    ["recovery_target", "recovery_target_name", "recovery_target_time", "recovery_target_xid", "recovery_target_lsn"];

/// What recovery needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecoverySettings {
    pub(super) target: RecoveryTarget,
    pub(super) action: TargetAction,
    pub(super) is_inclusive: bool,
    pub(super) timeline: TargetTimeline,
    pub(super) restore_command: String,
    /// Runs when recovery has ended; empty for none.
    pub(super) end_command: String,
    /// Whether the segment behind the one in which recovery stops is missing.
    pub(super) stops_before_gap: bool,
}

impl RecoverySettings {
    /// Lines for postgresql.auto.conf; later lines win over earlier ones there and over postgresql.conf. `end_of_set` counts
    /// for [`RecoveryTarget::Immediate`].
    pub(super) fn text(&self, version_num: u32, end_of_set: EndOfSet) -> String {
        let mut settings = String::from("# pagehaul: how far this restored cluster replays\n");
        let mut add = |name: &str, value: &str| {
            settings.push_str(&format!("{name} = {}\n", quoted(value)));
        };
        add("restore_command", &self.restore_command);
        // Commands of the original would run on the copy's behalf, against the original's archive.
        add("archive_cleanup_command", "");
        add("recovery_end_command", &self.end_command);
        add("recovery_target_timeline", &self.timeline.to_string());
        add("recovery_target_inclusive", if self.is_inclusive { "on" } else { "off" });
        let action = match self.action {
            TargetAction::Pause => "pause",
            TargetAction::Promote => "promote",
            TargetAction::Shutdown => "shutdown",
        };
        add("recovery_target_action", action);
        if self.target != RecoveryTarget::Standby {
            add("recovery_min_apply_delay", "0");
        }
        if self.stops_before_gap && version_num >= 150_000 {
            // A server that looks ahead asks for a segment that it will not need, and a gap ends its recovery.
            add("recovery_prefetch", "off");
        }
        let (name, value) = self.point(end_of_set);
        for other in TARGET_SETTINGS.iter().filter(|other| **other != name) {
            add(other, "");
        }
        if !name.is_empty() {
            add(name, &value);
        }
        settings
    }

    /// The one setting that names the target; empty if recovery goes on to the end.
    fn point(&self, end_of_set: EndOfSet) -> (&'static str, String) {
        let name = match &self.target {
            RecoveryTarget::Immediate => match end_of_set {
                EndOfSet::Record(lsn) => return ("recovery_target_lsn", lsn.to_string()),
                EndOfSet::LastOfItsWal => return ("", String::new()),
                EndOfSet::Consistency => return ("recovery_target", "immediate".to_owned()),
            },
            RecoveryTarget::Time(_) => "recovery_target_time",
            RecoveryTarget::Lsn(_) => "recovery_target_lsn",
            RecoveryTarget::Xid(_) => "recovery_target_xid",
            RecoveryTarget::Name(_) => "recovery_target_name",
            RecoveryTarget::SetEnd | RecoveryTarget::Latest | RecoveryTarget::Standby => return ("", String::new()),
        };
        (name, self.target.value().unwrap_or_default())
    }

    /// The file whose presence makes the server recover, and how.
    pub(super) fn signal_file(&self) -> &'static str {
        if self.target == RecoveryTarget::Standby { "standby.signal" } else { "recovery.signal" }
    }
}

/// `value` as the server's configuration files quote it (src/backend/utils/misc/guc-file.l).
fn quoted(value: &str) -> String {
    let mut text = String::from("'");
    for character in value.chars() {
        match character {
            '\'' => text.push_str("''"),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            other => text.push(other),
        }
    }
    text.push('\'');
    text
}

/// The command that fetches one WAL file: the shell reads it after the server replaced its %f and %p.
///
/// # Errors
/// `Usage` if the program's path is not UTF-8.
pub(super) fn restore_command(
    program: &Path,
    repo: &str,
    source: &SourceName,
    system_identifier: u64,
    target: &RecoveryTarget,
    key_flags: &[String],
) -> Result<String> {
    let path = path_of(program, "restore_command")?;
    let flag = match target {
        // It waits for what is missing, and helpers of its primary archive out of order.
        RecoveryTarget::Standby => "",
        RecoveryTarget::Immediate => "--only-histories ",
        // The plan found no gap.
        _ => "--fail-in-gap ",
    };
    let key_flags: String = key_flags.iter().map(|word| format!("{} ", for_shell(word))).collect();
    Ok(format!(
        "{} wal get --repo {} --source {source} --system-identifier {system_identifier} {key_flags}{flag}%f \"%p\"",
        for_shell(path),
        for_shell(repo)
    ))
}

/// The command that tells the repository that recovery has ended. Whatever it says, the server goes on: it would take a
/// program that is gone for a fatal error.
///
/// # Errors
/// `Usage` if the program's path is not UTF-8.
pub(super) fn end_command(
    program: &Path,
    repo: &str,
    source: &SourceName,
    label: &BackupLabel,
    mark: &RecoveryMark,
) -> Result<String> {
    let path = path_of(program, "recovery_end_command")?;
    Ok(format!(
        "{} wal recovered --repo {} --source {source} --set {label} {} || :",
        for_shell(path),
        for_shell(repo),
        mark.name()
    ))
}

fn path_of<'a>(program: &'a Path, setting: &str) -> Result<&'a str> {
    program.to_str().ok_or_else(|| {
        Error::new(ErrorKind::Usage, format!("use {} in {setting}", program.display()), "its path is not UTF-8")
    })
}

/// One word for `sh`, in which the server finds none of its placeholders.
fn for_shell(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''").replace('%', "%%"))
}

/// `command` with the server's placeholders replaced (BuildRestoreCommand in src/common/archive.c).
pub(super) fn as_the_server_runs_it(command: &str, file: &str, path: &str) -> String {
    let mut text = String::new();
    let mut characters = command.chars();
    while let Some(character) = characters.next() {
        match (character, characters.as_str().chars().next()) {
            ('%', Some('f')) => text.push_str(file),
            ('%', Some('p')) => text.push_str(path),
            ('%', Some('%')) => text.push('%'),
            _ => {
                text.push(character);
                continue;
            }
        }
        characters.next();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(target: &RecoveryTarget) -> String {
        text_of(target, false, 150_000)
    }

    fn text_of(target: &RecoveryTarget, stops_before_gap: bool, version_num: u32) -> String {
        let settings = RecoverySettings {
            target: target.clone(),
            action: TargetAction::Promote,
            is_inclusive: true,
            timeline: TargetTimeline::Current,
            restore_command: "x".to_owned(),
            end_command: String::new(),
            stops_before_gap,
        };
        settings.text(version_num, EndOfSet::Consistency)
    }

    #[test]
    fn a_server_that_is_to_stop_before_a_gap_does_not_look_ahead() {
        let target = RecoveryTarget::Xid(7);
        assert!(text_of(&target, true, 150_000).contains("\nrecovery_prefetch = 'off'\n"));
        assert!(!text_of(&target, false, 150_000).contains("recovery_prefetch"));
        assert!(!text_of(&target, true, 140_000).contains("recovery_prefetch"), "it does not know the setting");
    }

    #[test]
    fn every_target_setting_is_overridden_and_the_one_that_counts_is_last() {
        for target in [RecoveryTarget::Immediate, RecoveryTarget::Xid(7), RecoveryTarget::Name("a'b".to_owned())] {
            let text = settings(&target);
            for name in TARGET_SETTINGS {
                assert_eq!(text.matches(&format!("\n{name} = ")).count(), 1, "{name} in {text}");
            }
            let set: Vec<_> = text
                .lines()
                .filter(|line| TARGET_SETTINGS.iter().any(|name| line.starts_with(&format!("{name} ="))))
                .collect();
            assert_eq!(set.iter().filter(|line| !line.ends_with(" = ''")).count(), 1, "{text}");
            assert!(!set.last().unwrap().ends_with(" = ''"), "{text}");
        }
        let latest = settings(&RecoveryTarget::Latest);
        assert_eq!(latest.matches(" = ''").count(), TARGET_SETTINGS.len() + 2, "{latest}");
        assert!(settings(&RecoveryTarget::Name("a'b\\c".to_owned())).ends_with("recovery_target_name = 'a''b\\\\c'\n"));
    }

    #[test]
    fn s08_words_for_the_shell_survive_the_server() {
        let source = "main".parse().unwrap();
        let command =
            restore_command(Path::new("/opt/a b/page'haul"), "/repo/100%", &source, 77, &RecoveryTarget::Latest, &[])
                .unwrap();
        let of = |target| restore_command(Path::new("p"), "r", &source, 7, &target, &[]).unwrap();
        assert!(of(RecoveryTarget::Immediate).ends_with(r#" --only-histories %f "%p""#));
        assert!(of(RecoveryTarget::Standby).ends_with(r#" 7 %f "%p""#));
        assert_eq!(
            command,
            r#"'/opt/a b/page'\''haul' wal get --repo '/repo/100%%' --source main --system-identifier 77 --fail-in-gap %f "%p""#
        );
        assert_eq!(
            as_the_server_runs_it(&command, "F", "P"),
            r#"'/opt/a b/page'\''haul' wal get --repo '/repo/100%' --source main --system-identifier 77 --fail-in-gap F "P""#
        );
        assert_eq!(as_the_server_runs_it("50%%f %f%", "F", "P"), "50%f F%");
        assert_eq!(quoted("it's\\\n"), r"'it''s\\\n'");
    }
}
