//! Power that fails: a file system that forgets everything that was not synced. What was acknowledged is there afterwards.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::strace;
use super::wal::Wal;

/// Ends the file system at once, without writing what is in memory: EXT4_IOC_SHUTDOWN, 2 is "do not flush the journal".
const SHUTDOWN: &str = r#"open(my $file, "<", $ARGV[0]) or die "open: $!"; my $how = pack("L", 2);
    ioctl($file, 0x8004587D, $how) or die "ioctl: $!";"#;
/// Written and never synced.
const WITNESS: &str = "witness";

/// An ext4 file system in a file.
struct Disk {
    image: PathBuf,
    directory: PathBuf,
    is_mounted: bool,
}

impl Disk {
    /// None, with a word why, where none can be mounted.
    fn mount_new(image: &Path, directory: &Path) -> Option<Self> {
        std::fs::create_dir_all(directory).unwrap();
        let mut disk = Disk { image: image.to_owned(), directory: directory.to_owned(), is_mounted: false };
        let works =
            disk.format() && disk.mount() && Command::new("perl").arg("-e1").status().is_ok_and(|it| it.success());
        if !works {
            eprintln!(
                "SKIPPED: no ext4 image can be mounted here (that needs root and a loop device), or there is no perl"
            );
        }
        works.then_some(disk)
    }

    fn format(&self) -> bool {
        std::fs::remove_file(&self.image).ok();
        std::fs::File::create_new(&self.image).unwrap().set_len(96 << 20).unwrap();
        let mut format = Command::new("mkfs.ext4");
        format.args(["-q", "-F", "-E", "lazy_itable_init=0,nodiscard"]).arg(&self.image).stderr(Stdio::null());
        format.status().is_ok_and(|status| status.success())
    }

    fn mount(&mut self) -> bool {
        let mut mount = Command::new("mount");
        mount.args(["-o", "loop"]).args([&self.image, &self.directory]).stderr(Stdio::null());
        self.is_mounted = mount.status().is_ok_and(|status| status.success());
        self.is_mounted
    }

    fn unmount(&mut self) {
        self.is_mounted = !Command::new("umount").arg(&self.directory).status().unwrap().success();
        assert!(!self.is_mounted, "somebody uses {}", self.directory.display());
    }

    /// An empty one again.
    fn start_over(&mut self) {
        self.unmount();
        assert!(self.format() && self.mount());
    }

    /// The power fails and comes back. What nobody synced must be gone, or the test proves nothing.
    fn lose_power(&mut self) {
        let witness = self.directory.join(WITNESS);
        std::fs::write(&witness, [1; 8192]).unwrap();
        let ended = Command::new("perl").args(["-e", SHUTDOWN]).arg(&witness).output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        self.unmount();
        assert!(self.mount());
        let left = std::fs::metadata(&witness).map_or(0, |left| left.len());
        assert_eq!(left, 0, "the file system kept what was never synced");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted {
            Command::new("umount").arg(&self.directory).status().unwrap();
        }
    }
}

#[test]
fn f07_a_push_that_was_acknowledged_survives_a_power_loss() {
    let wal = Wal::new("wal_power");
    let Some(mut disk) = Disk::mount_new(&wal.place.directory.join("image"), &wal.place.repo()) else { return };
    wal.make_repository();
    disk.lose_power();
    // One by one, the next in directories that are there already, and several in one object.
    for files in [&wal.segments[..1], &wal.segments[1..2], &wal.segments[2..]] {
        let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
        let ran = wal.push(&files);
        assert_eq!(ran.code, Some(0), "{ran}");
        disk.lose_power();
        files.iter().for_each(|segment| wal.assert_delivers(segment));
    }
    wal.segments.iter().for_each(|segment| wal.assert_delivers(segment));
    assert_eq!(
        wal.place.run(&["wal", "list", "--repo", &wal.place.repo().display().to_string()].map(str::to_owned)).code,
        Some(0)
    );
}

/// The first push dies with its work on the disk or not; the second one is acknowledged, whatever it finds there.
#[test]
fn f07_a_push_after_a_killed_one_survives_a_power_loss() {
    if !strace::is_usable("wal_power_kill") {
        return;
    }
    let wal = Wal::new("wal_power_kill");
    let Some(mut disk) = Disk::mount_new(&wal.place.directory.join("image"), &wal.place.repo()) else { return };
    wal.make_repository();
    let segment = wal.segments[0].as_path();
    let arguments = wal.push_arguments(&[segment]);
    let trace = strace::trace(&wal.place, &["fsync", "fdatasync", "renameat2", "linkat"], &arguments);
    let places = strace::places(&trace, |_| true);
    assert!(places.len() >= 4, "{places:?}");
    let mut killed = 0;
    for at in &places {
        disk.start_over();
        wal.make_repository();
        killed += usize::from(strace::kill(&wal.place, at, &arguments));
        let again = wal.push(&[segment]);
        assert_eq!(again.code, Some(0), "killed at {at}: {again}");
        disk.lose_power();
        wal.assert_delivers(segment);
    }
    assert!(killed * 2 > places.len(), "{killed} of {} were killed", places.len());
}
