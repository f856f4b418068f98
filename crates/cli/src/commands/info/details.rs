//! Everything about one set, as `pagehaul info --set` shows it.

use super::proof::proof_details;
use super::protection::protection_text;
use super::{SetInfo, short_time};
use crate::commands::version_text;
use crate::output::figures::{bytes, count, ratio};
use crate::output::table::block;

/// The set in so many lines.
pub(super) fn details(set: &SetInfo) -> String {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let time =
        |time: &Option<String>| time.as_deref().map_or_else(String::new, |time| format!("{} UTC", short_time(time)));
    let stripes = set.stripes.iter().chain(&set.parity_stripes);
    let stripes: Vec<_> = stripes.map(|stripe| format!("{}  {}", stripe.path, bytes(stripe.bytes))).collect();
    let tablespaces: Vec<_> =
        set.tablespaces.iter().map(|space| format!("{}  {}", space.oid, space.location)).collect();
    let wal = set.start_lsn.zip(set.stop_lsn).zip(set.timeline).map(|((start, stop), timeline)| {
        format!(
            "{start} to {stop}, timeline {timeline}, {}",
            count(set.wal_segment_count.unwrap_or_default(), "segment")
        )
    });
    let stored = set.stored_bytes.map(|stored| {
        format!(
            "{}, ratio {}, {}",
            bytes(stored),
            set.ratio.map_or_else(|| "-".to_owned(), ratio),
            text(&set.compression)
        )
    });
    let data = set.source_bytes.zip(set.file_count);
    let chain = set
        .chain_stored_bytes
        .filter(|_| !set.prior.is_empty())
        .map(|stored| format!("{} of {}", bytes(stored), count(set.prior.len() as u64 + 1, "set")));
    let checksums = set.data_checksums.map(|on| if on { "with page checksums" } else { "without page checksums" });
    let server = set.postgres_version_num.map(|version| {
        format!(
            "PostgreSQL {} {}, system {}",
            version_text(version),
            checksums.unwrap_or_default(),
            text(&set.system_identifier)
        )
    });
    let lines = [
        ("state", set.state.to_owned()),
        ("kind", set.kind.clone()),
        ("needs", set.prior.join("\n")),
        ("made of", made_of(set)),
        ("chain", chain.unwrap_or_default()),
        ("encryption", encryption_text(set)),
        ("tampering", tampering_text(set)),
        ("description", text(&set.description)),
        ("protected", protection_text(set)),
        ("pinned", if set.pinned { set.pin_reason.clone().unwrap_or_else(|| "yes".to_owned()) } else { String::new() }),
        ("started", time(&set.started_at)),
        ("finished", time(&set.finished_at)),
        (
            "data",
            data.map_or_else(String::new, |(source, files)| format!("{}, {}", count(files, "file"), bytes(source))),
        ),
        ("stored", stored.unwrap_or_default()),
        ("stripes", stripes.join("\n")),
        ("server", server.unwrap_or_default()),
        ("directory", text(&set.data_directory)),
        ("tablespaces", tablespaces.join("\n")),
        ("WAL", wal.unwrap_or_default()),
        ("databases", set.databases.as_ref().map_or_else(String::new, |databases| databases.join(", "))),
        ("proof", proof_details(set)),
        ("bad pages", set.bad_page_count.map_or_else(String::new, |pages| pages.to_string())),
        (
            "lost files",
            set.lost_file_count.filter(|files| *files > 0).map_or_else(String::new, |files| files.to_string()),
        ),
        ("error", text(&set.error)),
    ];
    format!("backup {}\n{}", set.label, block(&lines))
}

fn encryption_text(set: &SetInfo) -> String {
    let Some(key_id) = &set.key_id else { return String::new() };
    let short = key_id.get(..16).unwrap_or(key_id);
    match set.locked {
        true => format!("data key {short}...; names and paths are shown with --identity"),
        false => format!("data key {short}..."),
    }
}

fn tampering_text(set: &SetInfo) -> String {
    let text = match set.bound_by {
        Some("signature") => "protected where --signer is given: all content hangs from the signed list by SHA-256",
        Some("checksums") => {
            "unprotected: checksums are against accidents; --sign-key or --recipient protect the next backup"
        }
        Some(_) => "protected: nobody without the key makes content that reads",
        None => "",
    };
    text.to_owned()
}

/// The chain that a full set was made of; those sets may be gone.
fn made_of(set: &SetInfo) -> String {
    let Some(from) = &set.synthesized_from else { return String::new() };
    let chain = from.prior.iter().map(|prior| format!("\n{prior}")).collect::<String>();
    format!("{}, at {} UTC, which needed{chain}", from.label, short_time(&from.synthesized_at))
}
