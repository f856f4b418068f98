//! SQL Server's own records in a backup: server, file groups, files.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagehaul_bak::sql::Configuration;

fuzz_target!(|data: &[u8]| {
    let Ok(config) = Configuration::parse(data) else { return };
    // Every file took its record.
    assert!(config.files.len() * 0x102 <= data.len());
});
