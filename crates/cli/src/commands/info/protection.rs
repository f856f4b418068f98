//! Until when nobody can delete a set, as `pagehaul info` shows it.

use pagehaul_engine::catalog::Repository;
use pagehaul_engine::catalog::protection::{WalProtection, protection_of_wal, protections_of_sets};
use pagehaul_engine::error::Result;
use pagehaul_engine::terms::{BackupLabel, SourceName};

use super::{SetInfo, SourceInfo, short_time};
use crate::output::figures::count;

/// Adds to each set with a manifest what protects it. A store that does not say is none that protects.
///
/// # Errors
/// None of the store's.
pub(super) fn add_protections(repository: &Repository, sources: &mut [SourceInfo]) -> Result<()> {
    for source in sources {
        let name: SourceName = source.source.parse()?;
        let mut sets: Vec<&mut SetInfo> = source.sets.iter_mut().filter(|set| set.finished_at.is_some()).collect();
        let labels = sets.iter().map(|set| set.label.parse()).collect::<Result<Vec<BackupLabel>>>()?;
        for (set, protection) in sets.iter_mut().zip(protections_of_sets(repository, &name, &labels)) {
            set.protected_until = protection.map(|protection| protection.until.to_string());
            set.protection_mode = protection.map(|protection| protection.mode);
        }
        // An archive that does not list is told of where its reach is.
        source.wal_protection = protection_of_wal(repository, &name).ok().flatten();
    }
    Ok(())
}

/// The same in words; empty if nothing protects the set.
pub(super) fn protection_text(set: &SetInfo) -> String {
    let both = set.protected_until.as_deref().zip(set.protection_mode);
    both.map_or_else(String::new, |(until, mode)| format!("until {} UTC, {mode} mode", short_time(until)))
}

/// What protects the WAL, in words.
pub(super) fn wal_text(wal: &WalProtection) -> String {
    let WalProtection { object_count, looked_at_count, unprotected_count, protected_until } = wal;
    let Some(until) = protected_until else { return String::new() };
    let until = short_time(&until.to_string());
    let looked = if looked_at_count == object_count {
        count(*object_count, "object")
    } else {
        format!("{looked_at_count} of {} looked at", count(*object_count, "object"))
    };
    match unprotected_count {
        0 => format!("WAL protected until {until} UTC ({looked})\n"),
        _ => format!(
            "WAL protected in part ({looked}): {unprotected_count} not at all, the others until {until} UTC; `pagehaul protect` protects what came since\n"
        ),
    }
}
