//! Content that somebody made who may write to the repository, with every checksum of the format right.

use std::path::{Path, PathBuf};

use pagehaul_engine::format::checksum::{crc32c, xxh3};
use pagehaul_engine::format::frame::{FRAME_HEADER_BYTES, FrameHeader};
use pagehaul_engine::format::page_sums::{PAGE_SUMS_BLOCK_BYTES, PAGE_SUMS_HEADER_BYTES};
use pagehaul_engine::format::stripe::STRIPE_HEADER_BYTES;

use super::signed::Scene;

pub(super) const TRUE_TEXT: &[u8] = b"# pay the rent to the landlord";

/// The file that has it.
const RULES: &str = "pg_hba.conf";
pub(super) const NOT_SIGNED: &str = "not what was signed";

/// Changes every place of a stripe or bundle, whose frames are stored as they are, where the text is. CRC32C does not change if what is
/// changed is a multiple of its polynomial, and so neither do the sums of frames and files; the frame's XXH3 is made anew.
pub(super) fn forge(stripe: &Path) -> usize {
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

/// A signed cluster with a set whose first stripe holds the true text as a part of pg_hba.conf.
struct Signed {
    scene: Scene,
    /// A set from before.
    plain: String,
    /// All of pg_hba.conf.
    text: Vec<u8>,
    /// The set's directory, and its first stripe.
    set: PathBuf,
    stripe: PathBuf,
}

impl Signed {
    fn start(backup: &[&str]) -> Self {
        let scene = Scene::start();
        let cluster = &scene.archived.cluster;
        cluster.run(&["CREATE TABLE payments (number int)", "INSERT INTO payments VALUES (1)"]);
        let rules = cluster.server.data_directory().join(RULES);
        let text = [std::fs::read(&rules).unwrap(), TRUE_TEXT.to_vec()].concat();
        std::fs::write(rules, &text).unwrap();
        let plain = scene.archived.backup();
        let ran = scene.try_backup_by("none", &scene.signing(backup));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let set = scene.archived.repo.join("main/sets").join(ran.json()["label"].as_str().unwrap());
        let stripe = set.join("stripe-0000.phs");
        Signed { scene, plain, text, set, stripe }
    }

    /// What a restore with these flags has as pg_hba.conf.
    fn restored(&self, flags: &[&str]) -> Vec<u8> {
        let copy = self.scene.archived.recover("restored", flags);
        let text = std::fs::read(copy.cluster.server.data_directory().join(RULES)).unwrap();
        copy.remove();
        text
    }

    /// Whoever asks for signatures is given nothing of the forged stripe.
    fn assert_refused(&self) {
        let (archived, scene) = (&self.scene.archived, &self.scene);
        let [target, elsewhere] =
            ["refused", "elsewhere"].map(|name| archived.cluster.server_directory(name).display().to_string());
        let verified = archived.run(&scene.asking(&["verify", "main"]));
        assert!(verified.code == Some(40) && verified.stderr.contains(NOT_SIGNED), "{verified:?}");
        let restore = ["restore", "main", "--target-dir", &target];
        archived.run(&scene.asking(&restore)).assert_refused(40, &[NOT_SIGNED, "SHA-256"]);
        archived.run(&scene.signing(&["copy", "main", "--to", &elsewhere])).assert_refused(40, &[NOT_SIGNED]);
    }
}

#[test]
fn s17_content_that_was_forged_with_all_its_checksums_is_refused_where_signatures_are_asked_for() {
    let signed = Signed::start(&[]);
    let (scene, archived, set) = (&signed.scene, &signed.scene.archived, &signed.set);
    let bound_by =
        |label: &str| archived.run_well(&["info", "--set", label, "--json"]).json()[0]["sets"][0]["bound_by"].clone();
    assert_eq!(bound_by(set.file_name().unwrap().to_str().unwrap()), "signature");
    assert_eq!(bound_by(&signed.plain), "checksums");
    let honest = std::fs::read(&signed.stripe).unwrap();
    archived.run_well(&scene.asking(&["verify", "main"]));
    assert_eq!(signed.restored(&scene.asking(&[])), signed.text);

    assert_eq!(forge(&signed.stripe), 1);
    // Checksums are against accidents: without a signature all is well, and wrong.
    archived.run_well(&["verify", "main"]);
    let forged = signed.restored(&[]);
    assert!(forged != signed.text && forged.ends_with(b"the rent to the landlord"), "{}", forged.escape_ascii());
    signed.assert_refused();

    // The digests themselves are what the manifest says, or nothing is read.
    std::fs::write(&signed.stripe, honest).unwrap();
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
    archived.cluster.run(&["INSERT INTO payments VALUES (2)"]);
    let next = scene.try_backup_by("none", &scene.signing(&["--type", "incr"]));
    assert!(next.code == Some(0) && next.stderr.contains(NOT_SIGNED), "{next:?}");
    let copy = archived.recover("next", &scene.asking(&[]));
    assert_eq!(copy.cluster.value("SELECT string_agg(number::text, ',' ORDER BY number) FROM payments"), "1,2");
    copy.remove();
}

#[test]
fn s17_parity_gives_back_what_was_signed_instead_of_what_was_forged() {
    let signed = Signed::start(&["--parity", "1", "--stripes", "2"]);
    let (scene, archived) = (&signed.scene, &signed.scene.archived);
    assert_eq!((0..2).map(|stripe| forge(&signed.set.join(format!("stripe-{stripe:04}.phs")))).sum::<usize>(), 1);
    assert_ne!(signed.restored(&[]), signed.text);
    assert_eq!(signed.restored(&scene.asking(&[])), signed.text);
    let whole = archived.cluster.server_directory("whole").display().to_string();
    archived.run_well(&scene.signing(&["copy", "main", "--to", &whole]));
    archived.run_program_well(&scene.asking(&["verify", "main", "--repo", &whole]));

    // What parity cannot give back is not given at all.
    let (parity, aside) = (signed.set.join("parity-0000.phs"), signed.set.with_file_name("aside"));
    std::fs::rename(&parity, &aside).unwrap();
    signed.assert_refused();
    std::fs::rename(&aside, &parity).unwrap();

    // What is put back is what was signed.
    let verified = archived.run(&scene.asking(&["verify", "main"]));
    assert!(verified.code == Some(40) && verified.stderr.contains("repair"), "{verified:?}");
    archived.run_well(&scene.asking(&["repair", "main"]));
    archived.run_well(&scene.asking(&["verify", "main"]));
    assert_eq!(signed.restored(&scene.asking(&[])), signed.text);
}
