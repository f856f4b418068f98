//! What was found in a member of a bundle when it was stored.

use super::wire::{FieldReader, damaged};
use crate::error::Result;
use crate::terms::{
    Lsn, RESTORE_POINT_NAME_BYTES_MAX, RestorePoint, TimelineBranch, TimelineHistory, TimelineId, WalFacts, WalTime,
};

/// Most restore points that are listed of one member.
pub const RESTORE_POINTS_MAX: usize = 256;
/// Most branches of a timeline history that are listed.
pub const BRANCHES_MAX: usize = 8192;

/// A restore point's name, with each of its bytes replaced.
const RESTORE_POINT_TEXT_BYTES_MAX: usize = 3 * RESTORE_POINT_NAME_BYTES_MAX;
const WHAT: &str = "a bundle's table of members";

const FLAG_WHOLE: u8 = 1;
const FLAG_ENDS_WITH_SWITCH: u8 = 2;
const FLAG_RESTORE_POINTS_CUT: u8 = 4;
const FLAG_HAS_TIMES: u8 = 8;
const FLAG_HAS_XIDS: u8 = 16;

/// What was found in a member when it was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberFacts {
    /// It was not looked into.
    None,
    /// It is WAL.
    Wal(WalFacts),
    /// It is a timeline history.
    History(TimelineHistory),
}

impl MemberFacts {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        match self {
            MemberFacts::None => out.push(0),
            MemberFacts::Wal(facts) => {
                out.push(1);
                put_wal_facts(out, facts);
            }
            MemberFacts::History(history) => {
                out.push(2);
                put_history(out, history);
            }
        }
    }

    pub(super) fn take(fields: &mut FieldReader<'_>) -> Result<Self> {
        match fields.u8()? {
            0 => Ok(MemberFacts::None),
            1 => take_wal_facts(fields).map(MemberFacts::Wal),
            2 => take_history(fields).map(MemberFacts::History),
            _ => Err(damaged(WHAT, "the kind of a member's facts is not known")),
        }
    }
}

pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    out.push(text.len() as u8);
    out.extend_from_slice(text.as_bytes());
}

pub(super) fn take_text(fields: &mut FieldReader<'_>, most_bytes: usize) -> Result<String> {
    let length = usize::from(fields.u8()?);
    if length > most_bytes {
        return Err(damaged(WHAT, "a name is too long"));
    }
    String::from_utf8(fields.take(length)?.to_vec()).map_err(|_| damaged(WHAT, "a name is not UTF-8"))
}

fn put_wal_facts(out: &mut Vec<u8>, facts: &WalFacts) {
    let flag = |set: bool, flag: u8| if set { flag } else { 0 };
    out.push(
        flag(facts.whole, FLAG_WHOLE)
            | flag(facts.ends_with_switch, FLAG_ENDS_WITH_SWITCH)
            | flag(facts.restore_points_cut, FLAG_RESTORE_POINTS_CUT)
            | flag(facts.ended_at.is_some(), FLAG_HAS_TIMES)
            | flag(facts.ended_xids.is_some(), FLAG_HAS_XIDS),
    );
    out.extend_from_slice(&facts.end_lsn.0.to_le_bytes());
    let (earliest, latest) = facts.ended_at.unwrap_or((WalTime(0), WalTime(0)));
    out.extend_from_slice(&earliest.0.to_le_bytes());
    out.extend_from_slice(&latest.0.to_le_bytes());
    let (smallest, largest) = facts.ended_xids.unwrap_or_default();
    out.extend_from_slice(&smallest.to_le_bytes());
    out.extend_from_slice(&largest.to_le_bytes());
    out.extend_from_slice(&(facts.restore_points.len() as u16).to_le_bytes());
    for point in &facts.restore_points {
        out.extend_from_slice(&point.lsn.0.to_le_bytes());
        out.extend_from_slice(&point.at.0.to_le_bytes());
        put_text(out, &point.name);
    }
}

fn take_wal_facts(fields: &mut FieldReader<'_>) -> Result<WalFacts> {
    let flags = fields.u8()?;
    let known = FLAG_WHOLE | FLAG_ENDS_WITH_SWITCH | FLAG_RESTORE_POINTS_CUT | FLAG_HAS_TIMES | FLAG_HAS_XIDS;
    if flags & !known != 0 {
        return Err(damaged(WHAT, "a reserved flag is used: it was written by a newer version"));
    }
    let has = |flag: u8| flags & flag != 0;
    let end_lsn = Lsn(fields.u64()?);
    let times = (WalTime(fields.i64()?), WalTime(fields.i64()?));
    let xids = (fields.u32()?, fields.u32()?);
    if !has(FLAG_HAS_TIMES) && times != (WalTime(0), WalTime(0)) || !has(FLAG_HAS_XIDS) && xids != (0, 0) {
        return Err(damaged(WHAT, "a field is used whose flag is not set"));
    }
    let count = usize::from(fields.u16()?);
    if count > RESTORE_POINTS_MAX {
        return Err(damaged(WHAT, "it lists too many restore points"));
    }
    let mut restore_points = Vec::new();
    for _ in 0..count {
        let (lsn, at) = (Lsn(fields.u64()?), WalTime(fields.i64()?));
        restore_points.push(RestorePoint { lsn, at, name: take_text(fields, RESTORE_POINT_TEXT_BYTES_MAX)? });
    }
    Ok(WalFacts {
        whole: has(FLAG_WHOLE),
        ends_with_switch: has(FLAG_ENDS_WITH_SWITCH),
        end_lsn,
        ended_at: has(FLAG_HAS_TIMES).then_some(times),
        ended_xids: has(FLAG_HAS_XIDS).then_some(xids),
        restore_points,
        restore_points_cut: has(FLAG_RESTORE_POINTS_CUT),
    })
}

fn put_history(out: &mut Vec<u8>, history: &TimelineHistory) {
    out.extend_from_slice(&history.timeline.0.to_le_bytes());
    out.extend_from_slice(&(history.branches.len() as u16).to_le_bytes());
    for branch in &history.branches {
        out.extend_from_slice(&branch.timeline.0.to_le_bytes());
        out.extend_from_slice(&branch.end_lsn.0.to_le_bytes());
    }
}

fn take_history(fields: &mut FieldReader<'_>) -> Result<TimelineHistory> {
    let timeline = TimelineId(fields.u32()?);
    let count = usize::from(fields.u16()?);
    if count > BRANCHES_MAX {
        return Err(damaged(WHAT, "a timeline history has too many branches"));
    }
    let mut branches = Vec::new();
    for _ in 0..count {
        branches.push(TimelineBranch { timeline: TimelineId(fields.u32()?), end_lsn: Lsn(fields.u64()?) });
    }
    Ok(TimelineHistory { timeline, branches })
}
