//! Foreign files in a repository whose store fails.

use std::sync::Arc;

use pagehaul_engine::catalog::Repository;
use pagehaul_engine::kept::{KeepRequest, keep, kept_files, read_content};
use pagehaul_engine::pipeline::bundle::FrameSettings;
use pagehaul_engine::storage::LocalStorage;
use pagehaul_testkit::faulty::{Faults, FaultyStorage};

/// Every operation fails once, or its answer is lost: what is listed afterwards can be read, and what was said to be kept
/// is listed.
#[test]
fn a_file_that_is_listed_can_be_read_whatever_operation_failed() {
    let content: Vec<u8> = (0..200_000u32).map(|at| (at.wrapping_mul(at) / 977) as u8).collect();
    let request = KeepRequest {
        source: "mssql".parse().unwrap(),
        name: "sales.bak".to_owned(),
        original_path: "/x/sales.bak".to_owned(),
        content_kind: "test".to_owned(),
        original_bytes: 200_000,
        frames: FrameSettings { codec: "zstd:1".parse().unwrap(), threads: 1, frame_size_bytes: 65536 },
    };
    let mut outcomes = [0, 0];
    for make in [Faults::at_operation as fn(u64) -> Arc<Faults>, Faults::lost_answer_at] {
        for number in 0.. {
            let directory = tempfile::tempdir().unwrap();
            let faults = make(number);
            let storage = FaultyStorage::new(LocalStorage::new(directory.path()), Arc::clone(&faults));
            let mut rest = content.as_slice();
            let kept = keep(&Repository::over(Box::new(storage)), &request, &mut |buffer| {
                let count = buffer.len().min(rest.len());
                buffer[..count].copy_from_slice(&rest[..count]);
                rest = &rest[count..];
                Ok(count)
            });
            let clean = Repository::over(Box::new(LocalStorage::new(directory.path())));
            let listed = kept_files(&clean, &request.source).unwrap();
            assert!(kept.is_err() || listed.len() == 1, "operation {number}");
            for file in &listed {
                let mut back = Vec::new();
                read_content(&clean, file, 1, &mut |bytes| {
                    back.extend_from_slice(bytes);
                    Ok(())
                })
                .unwrap_or_else(|error| panic!("operation {number}: {error}"));
                assert!(back == content, "operation {number}");
            }
            outcomes[usize::from(kept.is_err())] += 1;
            if faults.operations() <= number {
                break;
            }
        }
    }
    assert!(outcomes[0] >= 2 && outcomes[1] > 10, "{outcomes:?}");
}
