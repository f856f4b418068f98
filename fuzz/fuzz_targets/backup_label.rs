//! The backup label that the server hands out.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagehaul_engine::source::postgres::session::parse_backup_label;

fuzz_target!(|data: &[u8]| {
    let found = parse_backup_label(data);
    let text = format!("START WAL LOCATION: {}\nSTART TIMELINE: 1\n", String::from_utf8_lossy(data));
    let _prefixed = parse_backup_label(text.as_bytes());
    if let Some((lsn, timeline)) = found {
        let label = format!("START WAL LOCATION: {lsn} (file x)\nSTART TIMELINE: {timeline}\n");
        assert_eq!(parse_backup_label(label.as_bytes()), Some((lsn, timeline)));
    }
});
