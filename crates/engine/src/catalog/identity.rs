//! The fence of a source: one cluster backs up and archives under its name, and no other by mistake.

use super::inventory::newest_complete;
use super::repository::Repository;
use crate::error::{Error, ErrorKind, Result};
use crate::format::FORMAT_VERSION;
use crate::format::identity::{IDENTITY_BYTES_MAX, Identity};
use crate::storage::read_small;
use crate::terms::SourceName;

/// Largest number of an identity: a cluster is upgraded once a year, not daily.
const NUMBER_MAX: u32 = 9999;

/// Which cluster somebody wants to write for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterFacts {
    /// Its identifier.
    pub system_identifier: u64,
    /// `server_version_num`; the major version times 10000 where the minor one is not known.
    pub pg_version_num: u32,
}

/// `<source>/identity-0001.json`
pub fn identity_name(source: &SourceName, number: u32) -> String {
    format!("{source}/identity-{number:04}.json")
}

/// The identity that counts, with its number; None if nobody wrote one.
///
/// # Errors
/// `Damage` if it does not read; those of the storage.
pub fn newest(repository: &Repository, source: &SourceName) -> Result<Option<(u32, Identity)>> {
    let storage = repository.storage();
    let names = storage.list(source.as_str())?;
    let Some(number) = names.iter().filter_map(|name| number_of(name)).max() else { return Ok(None) };
    let name = identity_name(source, number);
    let place = format!("{name} in {}", storage.describe());
    let Some(bytes) = read_small(storage, &name, IDENTITY_BYTES_MAX)? else {
        return Err(Error::new(ErrorKind::Repository, format!("read {place}"), "it was listed and is not there"));
    };
    Ok(Some((number, Identity::from_bytes(&bytes, &place)?)))
}

fn number_of(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("identity-")?.strip_suffix(".json")?;
    (digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok())?
}

/// Checks that `cluster` is the one that writes under the name of `source`, and makes it that one if nobody is yet.
///
/// # Errors
/// `Conflict` if it is another; `Damage` and those of the storage.
pub fn check_or_create(repository: &Repository, source: &SourceName, cluster: &ClusterFacts) -> Result<()> {
    if repository.storage().discards() {
        return Ok(());
    }
    let found = match newest(repository, source)? {
        Some((_, identity)) => identity,
        None => {
            // Backups made before there were fences say whose name it is.
            if let Some(set) = newest_complete(repository, source)?
                && set.postgres.system_identifier != cluster.system_identifier.to_string()
            {
                return Err(not_yours(source, cluster, &set.postgres.system_identifier));
            }
            put(repository, source, 1, cluster)?;
            // The loser of a race is fenced by the winner's.
            match newest(repository, source)? {
                Some((_, identity)) => identity,
                None => {
                    let action = format!("make {} the cluster of {source}", cluster.system_identifier);
                    return Err(Error::new(ErrorKind::Repository, action, "what was written is not listed"));
                }
            }
        }
    };
    if found.system_identifier()? == cluster.system_identifier {
        return Ok(());
    }
    Err(not_yours(source, cluster, &found.system_identifier))
}

fn not_yours(source: &SourceName, cluster: &ClusterFacts, owner: &str) -> Error {
    let action = format!("write for cluster {} as {source}", cluster.system_identifier);
    let cause = format!("that name belongs to another cluster, with system identifier {owner}");
    Error::new(ErrorKind::Conflict, action, cause).hint(format!(
        "give this cluster another name; if it replaces the other for good, as after pg_upgrade: pagehaul wal adopt \
         --source {source} --pgdata DIR"
    ))
}

/// Makes `cluster` the one that writes under the name of `source` from now on; gives the number of its identity.
///
/// # Errors
/// `Conflict` if somebody else does the same at this moment; `Damage` and those of the storage.
pub fn adopt(repository: &Repository, source: &SourceName, cluster: &ClusterFacts) -> Result<u32> {
    let action = || format!("adopt cluster {} as {source}", cluster.system_identifier);
    let number = match newest(repository, source)? {
        Some((number, found)) if found.system_identifier()? == cluster.system_identifier => return Ok(number),
        Some((number, _)) => number + 1,
        None => 1,
    };
    if number > NUMBER_MAX {
        return Err(Error::new(ErrorKind::Repository, action(), "the source has 9999 identities")
            .hint("use another source name"));
    }
    if put(repository, source, number, cluster)? {
        return Ok(number);
    }
    Err(Error::new(ErrorKind::Conflict, action(), "another cluster is being adopted at this moment")
        .hint("`pagehaul wal list` shows which one it is"))
}

fn put(repository: &Repository, source: &SourceName, number: u32, cluster: &ClusterFacts) -> Result<bool> {
    let identity = Identity {
        format_version: FORMAT_VERSION,
        system_identifier: cluster.system_identifier.to_string(),
        pg_version_num: cluster.pg_version_num,
        created_at: jiff::Timestamp::now().to_string(),
    };
    repository.storage().put_new(&identity_name(source, number), &identity.to_bytes()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::LocalStorage;

    fn cluster(system_identifier: u64) -> ClusterFacts {
        ClusterFacts { system_identifier, pg_version_num: 170_000 }
    }

    #[test]
    fn the_first_cluster_is_the_one_until_another_is_adopted() {
        let dir = tempfile::tempdir().unwrap();
        let repository = Repository::over(Box::new(LocalStorage::new(dir.path())));
        let source: SourceName = "main".parse().unwrap();
        assert!(newest(&repository, &source).unwrap().is_none());
        check_or_create(&repository, &source, &cluster(1)).unwrap();
        check_or_create(&repository, &source, &cluster(1)).unwrap();
        let error = check_or_create(&repository, &source, &cluster(2)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.hint_text().unwrap().contains("pagehaul wal adopt"), "{error}");
        assert_eq!(adopt(&repository, &source, &cluster(2)).unwrap(), 2);
        assert_eq!(adopt(&repository, &source, &cluster(2)).unwrap(), 2, "again is no change");
        check_or_create(&repository, &source, &cluster(2)).unwrap();
        assert_eq!(check_or_create(&repository, &source, &cluster(1)).unwrap_err().kind(), ErrorKind::Conflict);
        check_or_create(&repository, &"other".parse().unwrap(), &cluster(1)).unwrap();
    }

    #[test]
    fn a_damaged_fence_stops_everybody() {
        let dir = tempfile::tempdir().unwrap();
        let repository = Repository::over(Box::new(LocalStorage::new(dir.path())));
        let source: SourceName = "main".parse().unwrap();
        repository.storage().put_new("main/identity-0001.json", b"{").unwrap();
        assert_eq!(check_or_create(&repository, &source, &cluster(1)).unwrap_err().kind(), ErrorKind::Damage);
        repository.storage().put_new("main/identity-x.json", b"{").unwrap();
        repository.storage().put_new("main/identity-00002.json", b"{").unwrap();
        assert!(newest(&repository, &source).unwrap_err().message().contains("identity-0001"));
    }
}
