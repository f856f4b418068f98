//! What a server sends over the replication protocol: answers to commands, a stream of WAL, a base backup. WAL never
//! reaches beyond the last position, and an end is an end.
#![no_main]

mod fake_server;

use std::time::Duration;

use fake_server::{logged_in, with_server};
use libfuzzer_sys::fuzz_target;
use pagehaul_engine::source::postgres::base_backup::{BackupMessage, BaseBackup, Order};
use pagehaul_engine::source::postgres::replication::{Replication, WalEvent};
use pagehaul_engine::terms::{Lsn, TimelineId};

/// Longer than a server that hangs up ever takes.
const WAIT: Duration = Duration::from_secs(5);

fuzz_target!(|data: &[u8]| {
    let Some(([what, major], says)) = data.split_first_chunk::<2>() else { return };
    let says = [logged_in(13 + u32::from(major % 6)), says.to_vec()].concat();
    with_server(says, |settings| {
        let Ok(mut server) = Replication::connect(settings) else { return };
        match what % 7 {
            0 => drop(server.identify_system()),
            1 => drop(server.timeline_history(TimelineId(2))),
            2 => drop(server.slot("fuzz")),
            3 => drop(server.create_slot("fuzz", true)),
            4 => drop(server.show("wal_segment_size")),
            5 => stream(&mut server),
            _ => base_backup(server),
        }
    });
});

fn stream(server: &mut Replication) {
    let Ok(mut wal) = server.start_streaming(None, Lsn(1 << 20), TimelineId(1)) else { return };
    loop {
        match wal.next(WAIT) {
            Ok(WalEvent::Wal { start_lsn, bytes, .. }) => {
                assert!(start_lsn.0.checked_add(bytes.len() as u64).is_some());
                if wal.acknowledge(start_lsn).is_err() {
                    return;
                }
            }
            Ok(WalEvent::Keepalive { .. } | WalEvent::Quiet) => {}
            Ok(WalEvent::End) => break,
            Err(_) => return,
        }
    }
    assert_eq!(wal.next(WAIT).ok(), Some(WalEvent::End));
    let _next = wal.end();
}

fn base_backup(mut server: Replication) {
    let order = Order { label: "fuzz", fast_checkpoint: true, changes_only: false };
    let Ok(accepted) = BaseBackup::ask(&mut server, &order) else { return };
    let Ok(mut base) = BaseBackup::begin(server, &accepted) else { return };
    let data_directories = base.tablespaces.iter().filter(|space| space.oid.is_none()).count();
    assert_eq!(data_directories, 1);
    let _size = base.size_bytes();
    loop {
        match base.next(WAIT) {
            Ok(BackupMessage::End { .. }) | Err(_) => return,
            Ok(_) => {}
        }
    }
}
