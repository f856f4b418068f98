//! QATzip's interface, against a library of the tests' own that has it.

use pagehaul_testkit::qatzip_stand_in::{QatzipBehaviour, build_qatzip};
use tempfile::TempDir;

use super::*;
use crate::codec::conformance::sample_data::{noise, pages, text};
use crate::codec::{DeflateEngine, new_deflate_decoder};

/// The stand-in, opened; None if it cannot be built here.
fn stand_in(behaviour: QatzipBehaviour) -> Option<std::result::Result<Qatzip, OpenError>> {
    let directory = TempDir::new().unwrap();
    build_qatzip(directory.path(), behaviour).map(Qatzip::open)
}

fn refusal(behaviour: QatzipBehaviour) -> Option<String> {
    match stand_in(behaviour)? {
        Err(OpenError::Unusable(cause)) => Some(cause),
        Err(OpenError::Absent(cause)) => panic!("{behaviour:?} is said to be absent: {cause}"),
        Ok(_) => panic!("{behaviour:?} is taken"),
    }
}

#[test]
fn frames_of_qatzip_are_read_by_every_engine() {
    for (behaviour, worker) in
        [(QatzipBehaviour::Hardware, Worker::Hardware), (QatzipBehaviour::Software, Worker::Software(11))]
    {
        let Some(Ok(qatzip)) = stand_in(behaviour) else { return };
        assert_eq!(qatzip.worker(), worker);
        for raw in [Vec::new(), vec![7], pages(700), text(65_536), noise(65_537), pages(1 << 20)] {
            let mut encoder = QatEncoder::new(qatzip.clone(), 1 + (raw.len() % 9) as i32, 1 << 20).unwrap();
            let mut stored = vec![0; room_for(raw.len())];
            let len = encoder.encode(&raw, &mut stored).unwrap().unwrap();
            assert_eq!(encoder.encode(&raw, &mut stored).unwrap(), Some(len), "a session works more than once");
            for engine in DeflateEngine::ALL {
                let Ok(mut decoder) = new_deflate_decoder(engine) else { continue };
                let mut back = vec![0; raw.len()];
                decoder.decode(&stored[..len], &mut back).unwrap();
                assert!(back == raw, "{engine}, {} bytes", raw.len());
            }
            assert_eq!(encoder.encode(&raw, &mut stored[..len - 1]).unwrap(), None, "it does not fit");
        }
    }
}

#[test]
fn who_works_is_said() {
    assert_eq!(Worker::Hardware.to_string(), "hardware");
    assert_eq!(Worker::Software(11).to_string(), "QATzip's own software: no QAT device was found (QATzip status 11)");
}

#[test]
fn a_session_that_is_refused_is_said_with_its_reason() {
    let Some(cause) = refusal(QatzipBehaviour::NoDevice) else { return };
    assert_eq!(cause, "it does not start: no QAT device was found (QATzip status -101)");
    let cause = refusal(QatzipBehaviour::Refuses).unwrap();
    assert_eq!(cause, "it refuses a session: it refuses the parameters (QATzip status -1)");
    let cause = refusal(QatzipBehaviour::OtherFormat).unwrap();
    assert_eq!(cause, "what it made of a sample is not raw DEFLATE of it");
}

#[test]
fn a_library_that_is_absent_or_another_one_is_said() {
    let Err(OpenError::Absent(cause)) = Qatzip::open("libqatzip-that-is-not-there.so") else { panic!("it is there") };
    assert!(cause.contains("libqatzip-that-is-not-there.so"), "{cause}");
    // The C library has none of the functions.
    let Err(OpenError::Unusable(cause)) = Qatzip::open("libc.so.6") else { panic!("it is taken for QATzip") };
    assert!(cause.contains("qzInit"), "{cause}");
    if let Err(error) = Qatzip::installed() {
        assert_eq!(error.kind(), ErrorKind::Configuration);
        assert!(error.hint_text().unwrap().contains("--deflate-engine auto"));
    }
}

#[test]
fn a_device_that_fails_is_an_error_and_the_next_frame_goes_on() {
    let Some(Ok(qatzip)) = stand_in(QatzipBehaviour::Hardware) else { return };
    let mut encoder = QatEncoder::new(qatzip, 1, 4096).unwrap();
    let mut stored = vec![0; 8192];
    let error = encoder.encode(b"FAIL: the device is gone", &mut stored).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert_eq!(
        error.message(),
        "unable to encode a deflate frame: QATzip took 0 of 24 bytes: the device did not answer in time (QATzip status -5)"
    );
    let len = encoder.encode(b"the next frame", &mut stored).unwrap().unwrap();
    let mut back = [0; 14];
    LibdeflateDecoder::new().unwrap().decode(&stored[..len], &mut back).unwrap();
    assert_eq!(&back, b"the next frame");
}

#[test]
fn frames_beyond_the_promised_size_are_our_bug() {
    let Some(Ok(qatzip)) = stand_in(QatzipBehaviour::Hardware) else { return };
    let mut encoder = QatEncoder::new(qatzip, 1, 10).unwrap();
    assert_eq!(encoder.encode(&[0; 11], &mut [0; 99]).unwrap_err().kind(), ErrorKind::Bug);
}
