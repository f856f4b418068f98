//! Tests of the bundle's structures: round trips, flipped bits, cuts, hostile counts.

use super::bundle_seal::BundleSeal;
use super::checksum::crc32c;
use super::stripe::{FrameIndex, IndexEntry};
use super::wal_bundle::*;
use crate::error::ErrorKind;
use crate::terms::*;
use proptest::prelude::*;

fn segment(name: &str, first_frame: u64, facts: MemberFacts) -> Member {
    Member {
        name: name.into(),
        size_bytes: 16 << 20,
        content_bytes: 5 << 20,
        crc32c: 0x1234_5678,
        first_frame,
        frame_count: 2,
        piece_offset: 0,
        facts,
    }
}

fn facts() -> WalFacts {
    WalFacts {
        whole: true,
        ends_with_switch: true,
        end_lsn: Lsn(0x300_0100),
        ended_at: Some((WalTime(-5), WalTime(700))),
        ended_xids: Some((u32::MAX, 3)),
        restore_points: vec![RestorePoint { name: "before ünicode".into(), lsn: Lsn(0x300_0050), at: WalTime(6) }],
        restore_points_cut: true,
    }
}

fn table() -> MemberTable {
    MemberTable {
        kind: BundleKind::Segments,
        system_identifier: 7_300_000_000_000_000_001,
        page_magic: 0xD110,
        segment_size_bytes: 16 << 20,
        wal_block_size_bytes: 8192,
        members: vec![
            segment("000000010000000000000003", 0, MemberFacts::Wal(facts())),
            segment("000000010000000000000004", 2, MemberFacts::Wal(WalFacts::default())),
        ],
        seal: None,
    }
}

fn sealed() -> MemberTable {
    let seal =
        BundleSeal { frame_digests: vec![[7; 32]; 4], signer: "ssh-ed25519 AAAA".into(), signature: "sig".into() };
    MemberTable { seal: Some(seal), ..table() }
}

fn history() -> MemberTable {
    let branches = vec![TimelineBranch { timeline: TimelineId(1), end_lsn: Lsn(9) }; 2];
    let member = Member {
        name: "00000002.history".into(),
        size_bytes: 40,
        content_bytes: 40,
        frame_count: 1,
        ..segment("x", 0, MemberFacts::History(TimelineHistory { timeline: TimelineId(2), branches }))
    };
    MemberTable { kind: BundleKind::File, members: vec![member], ..table() }
}

fn piece() -> MemberTable {
    let member = Member {
        size_bytes: 8 << 20,
        piece_offset: 8 << 20,
        ..segment("000000010000000000000003", 0, MemberFacts::None)
    };
    MemberTable { kind: BundleKind::Piece, members: vec![member], ..table() }
}

#[test]
fn tables_round_trip() {
    for table in [table(), history(), piece(), sealed()] {
        assert_eq!(MemberTable::from_bytes(&table.to_bytes().unwrap()).unwrap(), table);
    }
}

#[test]
fn the_header_round_trips_and_shows_every_flipped_bit() {
    let header = BundleHeader { bundle_id: SetId([3; 16]), frame_size_bytes: 1 << 20 };
    let good = header.to_bytes();
    assert_eq!(BundleHeader::from_bytes(&good).unwrap(), header);
    for bit in 0..good.len() * 8 {
        let mut bad = good;
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(BundleHeader::from_bytes(&bad).is_err(), "bit {bit}");
    }
    assert!(BundleHeader::from_bytes(&good[..511]).is_err());
}

#[test]
fn a_stripe_is_no_bundle_and_a_bundle_no_stripe() {
    let header = BundleHeader { bundle_id: SetId([3; 16]), frame_size_bytes: 1 << 20 };
    assert!(BundleHeader::from_bytes(&header.as_stripe().to_bytes()).is_err());
    assert!(super::stripe::StripeHeader::from_bytes(&header.to_bytes()).is_err());
}

#[test]
fn a_header_with_good_sums_and_bad_values_is_refused() {
    let header = BundleHeader { bundle_id: SetId([3; 16]), frame_size_bytes: 1 << 20 };
    let changed = |at: usize, value: u8| {
        let mut bytes = header.to_bytes();
        bytes[at] = value;
        let sum = crc32c(&bytes[..508]);
        bytes[508..].copy_from_slice(&sum.to_le_bytes());
        BundleHeader::from_bytes(&bytes)
    };
    assert!(changed(8, 2).unwrap_err().message().contains("version 2"));
    for (at, value) in [(12, 2), (14, 1), (32, 1), (35, 0xFF), (40, 1)] {
        assert_eq!(changed(at, value).unwrap_err().kind(), ErrorKind::Damage, "{at}");
    }
}

#[test]
fn every_cut_of_a_table_is_seen() {
    for table in [table(), history(), piece(), sealed()] {
        let bytes = table.to_bytes().unwrap();
        for length in 0..bytes.len() {
            assert!(MemberTable::from_bytes(&bytes[..length]).is_err(), "cut to {length}");
        }
        assert!(MemberTable::from_bytes(&[bytes, vec![0]].concat()).is_err(), "longer");
    }
}

#[test]
fn counts_are_bounded_before_anything_is_allocated() {
    let mut bytes = table().to_bytes().unwrap();
    for count in [0, 1, 3, MEMBER_COUNT_MAX as u32, MEMBER_COUNT_MAX as u32 + 1, u32::MAX] {
        bytes[12..16].copy_from_slice(&count.to_le_bytes());
        assert!(MemberTable::from_bytes(&bytes).is_err(), "{count}");
    }
    let mut two_files = history();
    two_files.members.push(two_files.members[0].clone());
    two_files.members[1].first_frame = 1;
    assert_eq!(two_files.to_bytes().unwrap_err().kind(), ErrorKind::Bug);
}

#[test]
fn what_does_not_fit_is_refused() {
    let refused = |change: &dyn Fn(&mut MemberTable)| {
        let mut table = table();
        change(&mut table);
        assert_eq!(table.to_bytes().unwrap_err().kind(), ErrorKind::Bug, "{table:?}");
    };
    refused(&|table| table.members[1].first_frame = 3);
    refused(&|table| table.members[0].size_bytes = 1 << 20);
    refused(&|table| table.members[0].content_bytes = 17 << 20);
    refused(&|table| table.members[0].name = "../../etc/passwd".into());
    refused(&|table| table.members[0].name = String::new());
    refused(&|table| table.members[0].name = "A".repeat(65));
    refused(&|table| table.members[0].piece_offset = 8192);
    refused(&|table| table.kind = BundleKind::Piece);
    let mut outside = piece();
    outside.members[0].piece_offset = 9 << 20;
    assert!(outside.to_bytes().is_err());
    let mut many = table();
    let point = facts().restore_points[0].clone();
    many.members[0].facts =
        MemberFacts::Wal(WalFacts { restore_points: vec![point; RESTORE_POINTS_MAX + 1], ..facts() });
    assert!(many.to_bytes().is_err());
}

#[test]
fn a_table_and_its_frames_must_agree() {
    let entry = |raw: u32| IndexEntry { raw_size_bytes: raw, stored_size_bytes: raw / 2 };
    let check_table = |table: &MemberTable, sizes: &[u32]| {
        let mut index = FrameIndex::default();
        sizes.iter().for_each(|raw| index.push(entry(*raw)));
        table.check_frames(&index, 4 << 20)
    };
    let check = |sizes: &[u32]| check_table(&table(), sizes);
    let (full, rest) = (4 << 20, 1 << 20);
    check(&[full, rest, full, rest, 200]).unwrap();
    for bad in [
        &[full, rest, full, rest][..],
        &[full, rest, full, rest, 200, 200],
        &[rest, full, full, rest, 200],
        &[full, rest, full],
        &[],
    ] {
        assert!(check(bad).is_err(), "{bad:?}");
    }
    let mut sealed = sealed();
    check_table(&sealed, &[full, rest, full, rest, 200]).unwrap();
    sealed.seal.as_mut().unwrap().frame_digests.pop();
    assert!(check_table(&sealed, &[full, rest, full, rest, 200]).is_err());
}

#[test]
fn all_of_a_bundle_but_the_signature_is_signed() {
    let header = BundleHeader { bundle_id: SetId([3; 16]), frame_size_bytes: 1 << 20 };
    let signed = |table: &MemberTable| table.signed_bytes(&header, table.seal.as_ref().unwrap());
    let change = |change: &dyn Fn(&mut MemberTable)| {
        let mut table = sealed();
        change(&mut table);
        table
    };
    let all = signed(&sealed());
    assert_eq!(signed(&change(&|table| table.seal.as_mut().unwrap().signature.clear())), all);
    let changes: [&dyn Fn(&mut MemberTable); 5] = [
        &|table| table.system_identifier += 1,
        &|table| table.members[1].crc32c ^= 1,
        &|table| table.members[1].name = "000000020000000000000004".into(),
        &|table| table.seal.as_mut().unwrap().frame_digests[3][31] ^= 1,
        &|table| table.seal.as_mut().unwrap().signer.push(' '),
    ];
    for (number, changed) in changes.iter().enumerate() {
        assert_ne!(signed(&change(changed)), all, "{number}");
    }
    let other = BundleHeader { frame_size_bytes: 2 << 20, ..header };
    assert_ne!(sealed().signed_bytes(&other, sealed().seal.as_ref().unwrap()), all);
}

#[test]
fn a_seal_is_bounded_before_anything_is_allocated() {
    let (bytes, start) = (sealed().to_bytes().unwrap(), table().to_bytes().unwrap().len());
    for count in [0, 3, 5, u32::MAX] {
        let mut other = bytes.clone();
        other[start..start + 4].copy_from_slice(&u32::to_le_bytes(count));
        assert!(MemberTable::from_bytes(&other).is_err(), "{count}");
    }
    let mut newer = bytes;
    newer[11] = 2;
    assert!(MemberTable::from_bytes(&newer).unwrap_err().message().contains("newer"));
}

proptest! {
    #[test]
    fn any_bytes_read_or_are_damage(bytes in proptest::collection::vec(any::<u8>(), 0..400), patch in 0usize..4) {
        let mut bytes = bytes;
        let good = [table(), history(), piece(), sealed()][patch].to_bytes().unwrap();
        let kept = bytes.len().min(good.len()) / 2;
        bytes[..kept].copy_from_slice(&good[..kept]);
        if let Ok(table) = MemberTable::from_bytes(&bytes) {
            prop_assert_eq!(table.to_bytes().unwrap(), bytes);
        }
    }
}
