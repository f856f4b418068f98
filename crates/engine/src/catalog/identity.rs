//! The fence of a source: one cluster backs up and archives under its name, and no other by mistake.

use super::inventory::newest_complete;
use super::repository::Repository;
use crate::error::{Error, ErrorKind, Result};
use crate::format::FORMAT_VERSION;
use crate::format::identity::{IDENTITY_BYTES_MAX, Identity};
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

impl ClusterFacts {
    fn of(system_identifier: &str, pg_version_num: u32) -> Result<Self> {
        let number = system_identifier.parse();
        let system_identifier = number.map_err(|cause| {
            Error::new(ErrorKind::Damage, format!("read the system identifier {system_identifier:?}"), cause)
        })?;
        Ok(ClusterFacts { system_identifier, pg_version_num })
    }
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
    let Some(bytes) = storage.read_small(&name, IDENTITY_BYTES_MAX)? else {
        return Err(Error::new(ErrorKind::Repository, format!("read {place}"), "it was listed and is not there"));
    };
    Ok(Some((number, Identity::from_bytes(&bytes, &place)?)))
}

/// All identities, oldest first.
///
/// # Errors
/// `Damage` if one does not read; those of the storage.
pub fn all(repository: &Repository, source: &SourceName) -> Result<Vec<Identity>> {
    let storage = repository.storage();
    let mut numbers: Vec<u32> = storage.list(source.as_str())?.iter().filter_map(|name| number_of(name)).collect();
    numbers.sort_unstable();
    let mut identities = Vec::with_capacity(numbers.len());
    for number in numbers {
        let name = identity_name(source, number);
        let place = format!("{name} in {}", storage.describe());
        if let Some(bytes) = storage.read_small(&name, IDENTITY_BYTES_MAX)? {
            identities.push(Identity::from_bytes(&bytes, &place)?);
        }
    }
    Ok(identities)
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
            // What somebody left who was killed as he wrote it is in nobody's way.
            repository.storage().sweep(source.as_str()).ok();
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

/// Gives the name of `source` in `to` to the clusters that have it in `from`, one after the other as they had it there.
///
/// Where the cluster that has the name in `to` is one that had it in `from` before, the later ones are adopted.
///
/// # Errors
/// `Conflict` if another cluster has the name in `to`; `Damage` and those of the storages.
pub fn follow(from: &Repository, to: &Repository, source: &SourceName) -> Result<()> {
    let (ours, theirs) = (clusters_of(from, source)?, clusters_of(to, source)?);
    let number = |cluster: &ClusterFacts| cluster.system_identifier;
    if ours.is_empty() {
        return Ok(());
    }
    if ours.last().map(number) == theirs.last().map(number) {
        // A set may be all that says so.
        return ours.last().map_or(Ok(()), |newest| check_or_create(to, source, newest));
    }
    let has_begun_alike =
        ours.len() > theirs.len() && ours.iter().zip(&theirs).all(|(one, two)| number(one) == number(two));
    if !has_begun_alike {
        let owner = |clusters: &[ClusterFacts]| clusters.last().map_or(0, number);
        let action = format!("copy {source} to {}", to.storage().describe());
        let cause = format!(
            "that name belongs there to another cluster, with system identifier {}, and in {} to {}",
            owner(&theirs),
            from.storage().describe(),
            owner(&ours)
        );
        return Err(Error::new(ErrorKind::Conflict, action, cause)
            .hint("copy to a repository in which the name is free, or is of the same cluster"));
    }
    ours[theirs.len()..].iter().try_for_each(|cluster| adopt(to, source, cluster).map(drop))
}

/// The clusters that have had the name of `source`, oldest first. Backups made before there were fences say whose it is.
fn clusters_of(repository: &Repository, source: &SourceName) -> Result<Vec<ClusterFacts>> {
    let identities = all(repository, source)?;
    if identities.is_empty() {
        let newest = newest_complete(repository, source)?.into_iter();
        return newest.map(|set| ClusterFacts::of(&set.postgres.system_identifier, set.postgres.version_num)).collect();
    }
    identities.iter().map(|found| ClusterFacts::of(&found.system_identifier, found.pg_version_num)).collect()
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
    fn a_copy_has_the_clusters_of_the_original_and_takes_no_others_name() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [from, to] = [&dirs[0], &dirs[1]].map(|dir| Repository::over(Box::new(LocalStorage::new(dir.path()))));
        let source: SourceName = "main".parse().unwrap();
        let numbers = |of| -> Vec<u64> {
            clusters_of(of, &source).unwrap().iter().map(|cluster| cluster.system_identifier).collect()
        };
        follow(&from, &to, &source).unwrap();
        assert!(numbers(&to).is_empty(), "of nobody known");
        check_or_create(&from, &source, &cluster(1)).unwrap();
        follow(&from, &to, &source).unwrap();
        adopt(&from, &source, &cluster(2)).unwrap();
        adopt(&from, &source, &cluster(3)).unwrap();
        follow(&from, &to, &source).unwrap();
        follow(&from, &to, &source).unwrap();
        assert_eq!(numbers(&to), [1, 2, 3]);
        // The name went on to somebody else there.
        adopt(&to, &source, &cluster(4)).unwrap();
        let error = follow(&from, &to, &source).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.message().contains("identifier 4, and in ") && error.message().ends_with("to 3"), "{error}");
        assert_eq!(numbers(&to), [1, 2, 3, 4]);
        adopt(&from, &source, &cluster(4)).unwrap();
        follow(&from, &to, &source).unwrap();
        assert_eq!(follow(&from, &to, &"other".parse().unwrap()).map_err(|error| error.kind()), Ok(()));
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
