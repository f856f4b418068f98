//! Which sets are copied. Pure: listings in, decisions out.

use std::collections::BTreeMap;

use crate::catalog::{SetListing, SetState};
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::Manifest;
use crate::terms::{BackupLabel, SourceName};

/// What the other repository has of a set.
#[derive(Debug)]
pub(super) enum There {
    /// A complete set with this id.
    Complete(String),
    /// One that is being removed.
    Expiring,
    /// One whose manifest does not read.
    Damaged(String),
}

/// What the other repository has, by label; sets that are being written count when their lease is asked for.
pub(super) fn what_is_there(listed: Vec<SetListing>) -> BTreeMap<BackupLabel, There> {
    let there = |set: SetListing| {
        let what = match set.state {
            SetState::Complete(manifest) => There::Complete(manifest.set_id.clone()),
            SetState::Expiring(_) => There::Expiring,
            SetState::Damaged(error) => There::Damaged(error.message()),
            SetState::Running | SetState::Incomplete => return None,
        };
        Some((set.label, what))
    };
    listed.into_iter().filter_map(there).collect()
}

/// What is to be done for one set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Todo {
    /// Copy it.
    Copy,
    /// It is there.
    Nothing,
    /// It is being removed there.
    Expired,
}

/// What is to be done for the set with this label and id.
///
/// # Errors
/// `Conflict` if another set has its label there, naming both; `Damage` if what is there does not read.
pub(super) fn todo(
    there: &BTreeMap<BackupLabel, There>,
    source: &SourceName,
    label: &BackupLabel,
    set_id: &str,
) -> Result<Todo> {
    let action = || format!("copy set {label} of {source}");
    match there.get(label) {
        None => Ok(Todo::Copy),
        Some(There::Complete(id)) if id == set_id => Ok(Todo::Nothing),
        Some(There::Expiring) => Ok(Todo::Expired),
        Some(There::Complete(id)) => {
            let cause = format!("its id is {set_id}, and another set has that label there, with id {id}");
            Err(Error::new(ErrorKind::Conflict, action(), cause)
                .hint("copy to another repository; both sets stay as they are"))
        }
        Some(There::Damaged(cause)) => {
            let cause = format!("what has that label there does not read: {cause}");
            Err(Error::new(ErrorKind::Damage, action(), cause)
                .hint("remove the damaged set there by hand, then the next copy brings it again"))
        }
    }
}

/// The set and what it needs, the oldest first: its priors by label and id, then itself.
///
/// # Errors
/// `Damage` if an id does not read.
pub(super) fn chain_of(manifest: &Manifest) -> Result<Vec<(BackupLabel, String)>> {
    let ids = manifest.prior_ids()?;
    let priors = manifest.prior.iter().cloned().zip(ids.iter().map(ToString::to_string)).rev();
    Ok(priors.chain([(manifest.label.clone(), manifest.set_id.clone())]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_known_by_label_and_id() {
        let source: SourceName = "main".parse().unwrap();
        let label = |text: &str| -> BackupLabel { text.parse().unwrap() };
        let there = BTreeMap::from([
            (label("20261121-000000F"), There::Complete("aa".into())),
            (label("20261122-000000I"), There::Expiring),
            (label("20261123-000000I"), There::Damaged("no".into())),
        ]);
        let todo = |text: &str, id: &str| todo(&there, &source, &label(text), id);
        assert_eq!(todo("20261121-000000F", "aa").unwrap(), Todo::Nothing);
        assert_eq!(todo("20261122-000000I", "bb").unwrap(), Todo::Expired);
        assert_eq!(todo("20261124-000000I", "cc").unwrap(), Todo::Copy);
        let other = todo("20261121-000000F", "dd").unwrap_err();
        assert!(
            other.kind() == ErrorKind::Conflict && other.message().contains("dd") && other.message().contains("aa")
        );
        assert_eq!(todo("20261123-000000I", "ee").unwrap_err().kind(), ErrorKind::Damage);
    }
}
