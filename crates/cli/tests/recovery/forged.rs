//! Content that somebody made who may write to the repository, with every checksum of the format right.

use std::path::Path;

use pagehaul_engine::format::checksum::{crc32c, xxh3};
use pagehaul_engine::format::frame::{FRAME_HEADER_BYTES, FrameHeader};
use pagehaul_engine::format::page_sums::{PAGE_SUMS_BLOCK_BYTES, PAGE_SUMS_HEADER_BYTES};
use pagehaul_engine::format::stripe::STRIPE_HEADER_BYTES;

use super::signed::Scene;

const TRUE_TEXT: &[u8] = b"# pay the rent to the landlord";

/// Changes every place of `stripe`, whose frames are stored as they are, where the text is. CRC32C does not change if what is
/// changed is a multiple of its polynomial, and so neither do the sums of frames and files; the frame's XXH3 is made anew.
fn forge(stripe: &Path) -> usize {
    let mut bytes = std::fs::read(stripe).unwrap();
    let polynomial = (1 | 0x82F6_3B78_u64 << 1).to_le_bytes();
    let (mut offset, mut forged) = (STRIPE_HEADER_BYTES, 0);
    while let Ok(header) = FrameHeader::from_bytes(&bytes[offset..]) {
        let (head, content) = bytes[offset..].split_at_mut(FRAME_HEADER_BYTES);
        let content = &mut content[..header.stored_size_bytes as usize];
        let places = content.windows(TRUE_TEXT.len()).enumerate().filter(|(_, window)| *window == TRUE_TEXT);
        let places: Vec<usize> = places.map(|(place, _)| place).collect();
        for place in &places {
            content[place + 1..place + 6].iter_mut().zip(polynomial).for_each(|(byte, other)| *byte ^= other);
        }
        assert_eq!(crc32c(content), header.raw_crc32c);
        head.copy_from_slice(&FrameHeader { stored_xxh3: xxh3(content), ..header }.to_bytes());
        forged += places.len();
        offset += FRAME_HEADER_BYTES + header.stored_size_bytes as usize;
    }
    std::fs::write(stripe, bytes).unwrap();
    forged
}

/// Changes the checksum of a page, and that of its block.
fn forge_sum(object: &Path) {
    let mut bytes = std::fs::read(object).unwrap();
    let end = bytes.len().min(PAGE_SUMS_HEADER_BYTES + PAGE_SUMS_BLOCK_BYTES);
    let (hash, sums) = bytes[PAGE_SUMS_HEADER_BYTES..end].split_at_mut(8);
    sums[0] ^= 1;
    hash.copy_from_slice(&xxh3(sums).to_le_bytes());
    std::fs::write(object, bytes).unwrap();
}

#[test]
fn s17_content_that_was_forged_with_all_its_checksums_is_refused_where_signatures_are_asked_for() {
    let scene = Scene::start();
    let (archived, cluster) = (&scene.archived, &scene.archived.cluster);
    cluster.run(&["CREATE TABLE payments (number int)", "INSERT INTO payments VALUES (1)"]);
    let rules = |pgdata: &Path| pgdata.join("pg_hba.conf");
    let text = [std::fs::read(rules(cluster.server.data_directory())).unwrap(), TRUE_TEXT.to_vec()].concat();
    std::fs::write(rules(cluster.server.data_directory()), &text).unwrap();
    let plain = archived.backup();
    let ran = scene.try_backup_by("none", &scene.signing(&["--parity", "1"]));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let label = ran.json()["label"].as_str().unwrap().to_owned();
    let set = archived.repo.join("main/sets").join(&label);
    let bound_by =
        |label: &str| archived.run_well(&["info", "--set", label, "--json"]).json()[0]["sets"][0]["bound_by"].clone();
    assert_eq!((bound_by(&label), bound_by(&plain)), ("signature".into(), "checksums".into()));
    let stripe = set.join("stripe-0000.phs");
    let honest = std::fs::read(&stripe).unwrap();
    archived.run_well(&scene.asking(&["verify", "main"]));
    let copy = archived.recover("honest", &scene.asking(&[]));
    assert_eq!(std::fs::read(rules(copy.cluster.server.data_directory())).unwrap(), text);
    copy.remove();

    assert_eq!(forge(&stripe), 1);
    // Checksums are against accidents: without a signature all is well, and wrong.
    archived.run_well(&["verify", "main"]);
    let copy = archived.recover("forged", &[]);
    let forged = std::fs::read(rules(copy.cluster.server.data_directory())).unwrap();
    assert!(forged != text && forged.ends_with(b"the rent to the landlord"), "{}", forged.escape_ascii());
    copy.remove();
    let target = archived.target("refused").display().to_string();
    let not_signed = ["not what was signed", "SHA-256"];
    let verified = archived.run(&scene.asking(&["verify", "main"]));
    assert!(
        verified.code == Some(40) && not_signed.iter().all(|cause| verified.stderr.contains(cause)),
        "{verified:?}"
    );
    let restore = ["restore", "main", "--target-dir", &target];
    archived.run(&scene.asking(&restore)).assert_refused(40, &not_signed);
    let elsewhere = cluster.server_directory("elsewhere").display().to_string();
    archived.run(&scene.signing(&["copy", "main", "--to", &elsewhere])).assert_refused(40, &not_signed);

    // The digests themselves are what the manifest says, or nothing is read.
    std::fs::write(&stripe, honest).unwrap();
    let digests = set.join("frames.sums");
    let (all, mut other) = (std::fs::read(&digests).unwrap(), std::fs::read(&digests).unwrap());
    other[0] ^= 1;
    for (bytes, cause) in [(&other, "not the ones that the manifest names"), (&Vec::new(), "one for each frame")] {
        std::fs::write(&digests, bytes).unwrap();
        archived.run(&scene.asking(&["verify", "main"])).assert_refused(40, &[cause, "without --signer"]);
        // Who asks for no signature restores, and is told.
        let verified = archived.run(&["verify", "main"]);
        assert!(verified.stderr.contains("nobody who gives --signer"), "{verified:?}");
    }
    std::fs::write(&digests, &all).unwrap();

    // A page that is called another one than it was would be left out of the next backup.
    forge_sum(&set.join("pages-0000.sums"));
    cluster.run(&["INSERT INTO payments VALUES (2)"]);
    let next = scene.try_backup_by("none", &scene.signing(&["--type", "incr"]));
    assert!(next.code == Some(0) && next.stderr.contains("not what was signed"), "{next:?}");
    let copy = archived.recover("next", &scene.asking(&[]));
    assert_eq!(copy.cluster.value("SELECT string_agg(number::text, ',' ORDER BY number) FROM payments"), "1,2");
    copy.remove();
}
