//! Proofs of sets: `<source>/proofs/<label>-<n>.json`, n from 1, each written once; the last one counts.

use super::repository::{Repository, sets_prefix};
use crate::error::{Error, ErrorKind, Result};
use crate::format::proof::{PROOF_BYTES_MAX, Proof};
use crate::terms::{BackupLabel, SourceName};

/// How often another process may take the next number first.
const ATTEMPTS_MAX: u32 = 100;

/// `<source>/proofs`
pub fn proofs_prefix(source: &SourceName) -> String {
    format!("{source}/proofs")
}

fn proof_name(source: &SourceName, label: &BackupLabel, number: u32) -> String {
    format!("{}/{label}-{number}.json", proofs_prefix(source))
}

/// The numbers of a set's proofs among the names below [`proofs_prefix`], the last one.
fn last_number(names: &[String], label: &BackupLabel) -> Option<u32> {
    let prefix = format!("{label}-");
    let number = |name: &String| name.strip_prefix(&prefix)?.strip_suffix(".json")?.parse::<u32>().ok();
    names.iter().filter_map(number).max()
}

/// Keeps a proof under the next number; gives the object's name.
///
/// # Errors
/// Those of the storage.
pub fn put_proof(repository: &Repository, proof: &Proof) -> Result<String> {
    let storage = repository.storage();
    let bytes = proof.to_bytes()?;
    for _ in 0..ATTEMPTS_MAX {
        let names = storage.list(&proofs_prefix(&proof.source))?;
        let number = last_number(&names, &proof.label).unwrap_or(0) + 1;
        let name = proof_name(&proof.source, &proof.label, number);
        if storage.put_new(&name, &bytes)? {
            return Ok(name);
        }
    }
    let action = format!("keep the proof of {} in {}", proof.label, storage.describe());
    Err(Error::new(ErrorKind::Conflict, action, "others keep proofs of it all the time"))
}

/// Removes the proofs of sets that are no more.
///
/// # Errors
/// Those of the storage.
pub fn remove_proofs_of_removed_sets(repository: &Repository, source: &SourceName) -> Result<()> {
    let storage = repository.storage();
    // Proofs first: a set that is made and proven between the two is among the sets.
    let proofs = storage.list(&proofs_prefix(source))?;
    let sets = storage.list(&sets_prefix(source))?;
    for name in proofs {
        let label = name.strip_suffix(".json").and_then(|name| name.rsplit_once('-')).map(|(label, _)| label);
        if label.is_some_and(|label| label.parse::<BackupLabel>().is_ok() && !sets.iter().any(|set| set == label)) {
            storage.delete(&format!("{}/{name}", proofs_prefix(source)))?;
        }
    }
    Ok(())
}

/// The last proof of each of the sets given by label and id, in their order; None where there is none. A proof that
/// does not read proves nothing.
///
/// # Errors
/// Those of the storage.
pub fn last_proofs(
    repository: &Repository,
    source: &SourceName,
    sets: &[(BackupLabel, String)],
) -> Result<Vec<Option<Proof>>> {
    let storage = repository.storage();
    let names = storage.list(&proofs_prefix(source))?;
    let last = |(label, set_id): &(BackupLabel, String)| {
        let Some(number) = last_number(&names, label) else { return Ok(None) };
        let name = proof_name(source, label, number);
        let bytes = match storage.read_small(&name, PROOF_BYTES_MAX) {
            Err(error) if error.kind() == ErrorKind::Damage => return Ok(None),
            other => other?,
        };
        let proof = bytes.and_then(|bytes| Proof::from_bytes(&bytes, &name).ok());
        Ok(proof.filter(|proof| proof.label == *label && proof.set_id == *set_id))
    };
    sets.iter().map(last).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::proof::ProofResult;
    use crate::format::proof::tests::sample;

    #[test]
    fn the_last_proof_of_the_same_set_counts() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("repo").display().to_string();
        let repository = Repository::open_or_create(&target).unwrap();
        let label = "20261121-201530F";
        let proven = sample(label, ProofResult::Proven);
        assert_eq!(put_proof(&repository, &proven).unwrap(), format!("main/proofs/{label}-1.json"));
        for number in 2..=10 {
            let broken = sample(label, ProofResult::Broken);
            assert_eq!(put_proof(&repository, &broken).unwrap(), format!("main/proofs/{label}-{number}.json"));
        }
        let last = put_proof(&repository, &proven).unwrap();
        let others = [
            (proven.label.clone(), proven.set_id.clone()),
            (proven.label.clone(), "02".repeat(16)),
            ("20261121-201530I".parse().unwrap(), proven.set_id.clone()),
        ];
        let results =
            |proofs: Vec<Option<Proof>>| proofs.into_iter().map(|proof| proof.map(|p| p.result)).collect::<Vec<_>>();
        let found = last_proofs(&repository, &proven.source, &others).unwrap();
        assert_eq!(results(found), [Some(ProofResult::Proven), None, None], "eleven is more than ten");
        std::fs::write(directory.path().join("repo").join(last), b"rubbish").unwrap();
        let found = last_proofs(&repository, &proven.source, &others[..1]).unwrap();
        assert_eq!(results(found), [None], "an older one does not count in its place");
    }

    #[test]
    fn proofs_go_with_their_set() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("repo").display().to_string();
        let repository = Repository::open_or_create(&target).unwrap();
        let kept = put_proof(&repository, &sample("20261121-201530F", ProofResult::Proven)).unwrap();
        let goes = put_proof(&repository, &sample("20261121-201530I", ProofResult::Proven)).unwrap();
        let foreign = "main/proofs/notes.json";
        let storage = repository.storage();
        assert!(storage.put_new("main/sets/20261121-201530F/manifest.json", b"x").unwrap());
        assert!(storage.put_new(foreign, b"x").unwrap());
        remove_proofs_of_removed_sets(&repository, &"main".parse().unwrap()).unwrap();
        let there = |name: &str| storage.open(name).unwrap().is_some();
        assert_eq!((there(&kept), there(&goes), there(foreign)), (true, false, true));
        remove_proofs_of_removed_sets(&repository, &"other".parse().unwrap()).unwrap();
    }
}
