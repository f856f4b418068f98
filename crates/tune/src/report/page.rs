//! Puts the page together out of the files of `assets/`. Pure.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

const FRAME: &str = include_str!("../../assets/page.html");
const STYLE: &str = include_str!("../../assets/report.css");
const PROBLEMS: &str = include_str!("../../assets/problems.js");
const D3: &str = include_str!("../../assets/vendor/d3.min.js");
const PLOT: &str = include_str!("../../assets/vendor/plot.umd.min.js");
const LICENCES: &str = include_str!("../../assets/vendor/LICENSES.txt");
/// Our script: one piece for the browser, several files for people.
const OWN: [&str; 5] = [
    include_str!("../../assets/dom.js"),
    include_str!("../../assets/tables.js"),
    include_str!("../../assets/plots.js"),
    include_str!("../../assets/summary.js"),
    include_str!("../../assets/report.js"),
];

/// The page that shows the JSON document `data`.
pub(super) fn page(data: &str) -> String {
    let own = OWN.concat();
    let hashes = [PROBLEMS, D3, PLOT, &own].map(script_hash).join(" ");
    fill(FRAME, |name| match name {
        "script_hashes" => hashes.clone(),
        "style" => STYLE.to_owned(),
        "data" => escape_json(data),
        "licences" => LICENCES.to_owned(),
        "problems" => PROBLEMS.to_owned(),
        "d3" => D3.to_owned(),
        "plot" => PLOT.to_owned(),
        "own" => own.clone(),
        _ => String::new(),
    })
}

/// A script as the content security policy names it: it may run only as it is.
fn script_hash(script: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(script)))
}

/// JSON that stands inside a script element: nothing in it can end the element or begin a comment, and it stays the
/// same JSON. U+2028 and U+2029 end lines for some readers of scripts.
fn escape_json(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len() + json.len() / 16);
    for sign in json.chars() {
        match sign {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => escaped += &format!("\\u{:04x}", sign as u32),
            _ => escaped.push(sign),
        }
    }
    escaped
}

/// `template` with every `{{name}}` replaced, in one pass: what is put in is not looked at again.
fn fill(template: &str, value_of: impl Fn(&str) -> String) -> String {
    let mut filled = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        filled += before;
        let Some((name, behind)) = after.split_once("}}") else { break };
        filled += &value_of(name);
        rest = behind;
    }
    filled + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_cannot_leave_its_element_and_stays_the_same() {
        let json = serde_json::to_string("</script><!-- & \u{2028}\u{2029} \" \\ ü").unwrap();
        let escaped = escape_json(&json);
        assert!(!escaped.contains(['<', '>', '&', '\u{2028}', '\u{2029}']), "{escaped}");
        let (before, after): (String, String) =
            (serde_json::from_str(&json).unwrap(), serde_json::from_str(&escaped).unwrap());
        assert_eq!(before, after);
    }

    #[test]
    fn what_is_filled_in_is_not_filled_again() {
        assert_eq!(fill("a {{x}} b {{y}} c", |name| format!("{{{{{name}{name}}}}}")), "a {{xx}} b {{yy}} c");
    }

    #[test]
    fn every_place_of_the_frame_is_known() {
        let data = "\"DATA\"";
        let page = page(data);
        assert!(page.contains(data) && page.contains(STYLE) && page.contains(LICENCES));
        for name in FRAME.split("{{").skip(1).filter_map(|after| after.split("}}").next()) {
            assert!(!page.contains(&format!("{{{{{name}}}}}")), "{name} is not filled in");
        }
        for script in [PROBLEMS, D3, PLOT, &OWN.concat()] {
            assert!(page.contains(&format!("<script>{script}</script>")) && page.contains(&script_hash(script)));
        }
    }

    #[test]
    fn vendored_files_are_as_published() {
        let readme = include_str!("../../assets/README.md");
        for (name, text) in [("d3.min.js", D3), ("plot.umd.min.js", PLOT)] {
            let sum: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
            let line = readme.lines().find(|line| line.starts_with(&format!("| `{name}`"))).unwrap();
            assert!(line.contains(&sum), "{name} has the sum {sum}");
        }
    }

    #[test]
    fn no_script_can_end_its_element() {
        for script in OWN.iter().chain(&[PROBLEMS, D3, PLOT, LICENCES]) {
            let script = script.to_lowercase();
            assert!(!script.contains("</script") && !script.contains("<!--") && !script.contains("<script"));
        }
    }

    #[test]
    fn a_script_hash_is_the_one_browsers_compute() {
        // The example of the specification of Content Security Policy level 2, section 7.17.5 ("alert('Hello, world.');").
        let known = "'sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng='";
        assert_eq!(script_hash("alert('Hello, world.');"), known);
    }
}
