//! How files begin, and what no file may mention: the project speaks of itself alone.

use super::Finding;
use super::lexer::is_word;
use super::source::File;

/// Text that no tracked file may hold, in pieces so that this file does not hold it either.
struct Foreign {
    text: String,
    instead: &'static str,
    /// Whether it counts only where a path begins, not inside a longer path.
    is_absolute_path: bool,
    /// Files that name it for good reasons.
    exempt: &'static [&'static str],
}

fn foreign_texts() -> Vec<Foreign> {
    let path = |name: &str| Foreign {
        text: format!("/{name}/"),
        instead: "is one machine's path, instead write it relative to the checkout or take it from the environment",
        is_absolute_path: true,
        exempt: &[],
    };
    let host = |name: &str, end: &str| Foreign {
        text: format!("{name}.{end}"),
        instead: "is a package registry's host, instead name the package and let its client find it",
        is_absolute_path: false,
        exempt: &["Cargo.lock"],
    };
    vec![
        path("work"),
        path("farm"),
        host("crates", "io"),
        host("pypi", "org"),
        host("pythonhosted", "org"),
        host("npmjs", "org"),
        host("npmjs", "com"),
        host("proxy", "golang.org"),
        host("maven", "org"),
        host("deb", "debian.org"),
    ]
}

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let foreign = foreign_texts();
    let mut findings = Vec::new();
    for file in files {
        if file.is_rust() && !file.text.starts_with("//!") {
            let message = "does not begin with `//!`, instead say there in a sentence what the file is for";
            findings.push(Finding::new(&file.path, 1, message));
        }
        for foreign in foreign.iter().filter(|foreign| !foreign.exempt.contains(&file.path.as_str())) {
            for (index, _) in file.text.lines().enumerate().filter(|(_, line)| foreign.is_in(line)) {
                findings.push(Finding::new(&file.path, index + 1, format!("`{}` {}", foreign.text, foreign.instead)));
            }
        }
    }
    findings
}

impl Foreign {
    fn is_in(&self, line: &str) -> bool {
        line.match_indices(&self.text).any(|(at, _)| !self.is_absolute_path || begins_path(&line[..at]))
    }
}

/// Whether a slash after `before` is the first of its path.
fn begins_path(before: &str) -> bool {
    !before.bytes().last().is_some_and(|byte| is_word(byte) || b".-/~}".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::check_rule;

    #[test]
    fn sources_begin_with_their_purpose() {
        check_rule(check, &[("a.rs", "//! What.\n"), ("b.toml", "x = 1")], &[]);
        check_rule(check, &[("a.rs", "use x;\n")], &["a.rs:1: does not begin with"]);
    }

    #[test]
    fn places_of_one_machine_are_found() {
        let text = format!("x\ncp /{}/x y", "work");
        check_rule(check, &[("a.md", &text)], &[&format!("a.md:2: `/{}/` is one machine's path", "work")]);
        let below = |place| format!("target/{place}/x and $dir/{place}/y, ${{dir}}/{place}/z, frame/{place}/");
        check_rule(check, &[("a.md", &below("work")), ("b.md", &below("farm"))], &[]);
    }

    #[test]
    fn registry_hosts_are_found_outside_the_lock_file() {
        let text = format!("see https://{}.io/x", "crates");
        check_rule(check, &[("a.md", &text)], &[&format!("a.md:1: `{}.io` is a package registry's host", "crates")]);
        check_rule(check, &[("Cargo.lock", &text), ("a.md", "crates and io")], &[]);
    }
}
