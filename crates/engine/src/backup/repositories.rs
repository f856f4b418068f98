//! Several repositories from one read: opened, checked, and told apart again in the report.

use super::report::{BackupRequest, RepositoryReport};
use crate::catalog::Repository;
use crate::catalog::new_set::remove_leftovers;
use crate::catalog::open_set::read_manifest;
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::Manifest;
use crate::storage::{Storage, is_same_store, open_storage};
use crate::terms::SourceName;

/// The repository of the request, or the mirror of all of them. One that cannot be opened is left out if another can.
///
/// # Errors
/// `Usage` if two are the same, or one is none; those of the last one that could be opened.
pub(super) fn open_all(request: &BackupRequest) -> Result<Repository> {
    if request.more_repos.is_empty() {
        return Repository::open_or_create(&request.repo);
    }
    let targets: Vec<&String> = std::iter::once(&request.repo).chain(&request.more_repos).collect();
    let refuse =
        |cause: &str, hint: &str| Err(Error::new(ErrorKind::Usage, "write to several repositories", cause).hint(hint));
    if !request.stripe_to.is_empty() || !request.parity_to.is_empty() {
        return refuse(
            "--stripe-to and --parity-to name places for the stripes of one",
            "leave out --stripe-to and --parity-to",
        );
    }
    let stores = targets.iter().map(|target| open_storage(target)).collect::<Result<Vec<Box<dyn Storage>>>>()?;
    if stores.iter().any(|store| store.discards()) {
        return refuse("NUL keeps nothing", "leave out NUL");
    }
    let refuse_same = || {
        let cause = "two of them are the same, or one is a copy of the other made by other means";
        refuse(cause, "give each --repo once; `pagehaul copy` makes a repository of its own")
    };
    let is_named_before =
        |at: usize| stores[..at].iter().any(|store| is_same_store(store.as_ref(), stores[at].as_ref()));
    if (1..stores.len()).any(is_named_before) {
        return refuse_same();
    }
    let mirror = Repository::mirrored(stores.into_iter().map(Repository::over).collect());
    let (mut next, mut ids) = (targets.iter(), Vec::new());
    // In the order of the copies, each of which still works.
    mirror.each(|copy| {
        next.next().map_or(Ok(()), |target| Repository::open_or_create(target).map(drop))?;
        ids.extend(copy.id()?);
        Ok(())
    })?;
    // Links and other names of a host lead to one place, too.
    if (1..ids.len()).any(|at| ids[..at].contains(&ids[at])) {
        return refuse_same();
    }
    Ok(mirror)
}

/// Leaves out each copy that has not the prior, and those it needs, as the first one has them.
///
/// # Errors
/// Those of the last copy that worked.
pub(super) fn check_have_prior(repository: &Repository, prior: &Manifest) -> Result<()> {
    if repository.copies().is_empty() {
        return Ok(());
    }
    let ids = std::iter::once(&prior.set_id).chain(&prior.prior_set_ids);
    let labels = std::iter::once(&prior.label).chain(&prior.prior);
    let needed: Vec<_> = labels.zip(ids).collect();
    repository.each(|copy| {
        for (label, set_id) in &needed {
            let cause = match read_manifest(copy, &prior.source, label) {
                Ok(manifest) if manifest.set_id == **set_id => continue,
                Ok(_) => format!("its set {label} is another one"),
                Err(error) => error.message(),
            };
            let action = format!("back up on top of set {} in {}", prior.label, copy.storage().describe());
            return Err(Error::new(ErrorKind::Repository, action, cause)
                .hint("`pagehaul copy` brings it the sets that it lacks, or make a full backup to all repositories"));
        }
        Ok(())
    })
}

/// Removes what a backup to several repositories has left in those that it left out, where that can be done now.
pub(super) fn remove_from_failed(repository: &Repository, source: &SourceName) {
    for copy in repository.failed_copies() {
        // The next backup to it finds what stays.
        remove_leftovers(copy, source).ok();
    }
}

/// What became of each copy; empty if there is only one repository.
pub(super) fn reports(repository: &Repository) -> Vec<RepositoryReport> {
    let report = |(repo, failed): (String, Option<&Error>)| RepositoryReport {
        repo,
        state: if failed.is_some() { "failed" } else { "complete" },
        error: failed.map(Error::message),
        hint: failed.and_then(|error| error.hint_text().map(str::to_owned)),
    };
    repository.copies().into_iter().map(report).collect()
}
