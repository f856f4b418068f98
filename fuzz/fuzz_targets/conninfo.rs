//! Connection strings, `key=value` and URI: nothing panics, and no password shows in the debug text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagehaul_engine::source::postgres::conninfo::ConnectSettings;

fuzz_target!(|text: &str| {
    check(text);
    check(&format!("postgresql://{text}"));
});

fn check(conninfo: &str) {
    let Ok(settings) = ConnectSettings::parse(conninfo) else { return };
    let _path = settings.socket_path();
    let hidden = settings.password.as_ref().map(|secret| format!("{secret:?}"));
    assert!(hidden.is_none_or(|text| text == "Secret(...)"));
}
