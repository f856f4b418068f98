//! The manifest: as found, and with the input as a document whose checksum holds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagehaul_engine::format::checksum::xxh3;
use pagehaul_engine::format::manifest::Manifest;

fuzz_target!(|data: &[u8]| {
    check(data);
    let mut bytes = data.to_vec();
    bytes.extend_from_slice(format!(",\n  \"manifest_xxh3\": \"{:016x}\"\n}}\n", xxh3(data)).as_bytes());
    check(&bytes);
});

fn check(bytes: &[u8]) {
    if let Ok(manifest) = Manifest::from_bytes(bytes, "the input") {
        let _id = manifest.set_id();
        let Ok(written) = manifest.to_bytes() else { panic!("a manifest that was read cannot be written") };
        assert!(Manifest::from_bytes(&written, "what was written").is_ok());
    }
}
