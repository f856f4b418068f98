//! Disks that are too small, for the repository and for the target of a restore.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::bench::{Place, Ran};
use super::kill_restore::assert_does_not_start;

/// A file system in memory, of a given size.
pub(crate) struct SmallDisk {
    directory: PathBuf,
}

impl SmallDisk {
    /// None, with a word why, where none can be mounted.
    pub(crate) fn mount(directory: &Path, options: &str) -> Option<Self> {
        std::fs::create_dir_all(directory).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(directory).stderr(Stdio::null());
        if mount.status().is_ok_and(|status| status.success()) {
            return Some(SmallDisk { directory: directory.to_owned() });
        }
        eprintln!("SKIPPED: no tmpfs can be mounted here (that needs root): full disks are not tested");
        None
    }

    pub(crate) fn resize(&self, options: &str) {
        let status = Command::new("mount").args(["-o", &format!("remount,{options}")]).arg(&self.directory).status();
        assert!(status.unwrap().success());
    }

    /// No room is left for anything that is not there yet.
    fn fill(&self) {
        // The restore goes on meanwhile, and a size below what is used is refused.
        let shrink = |_| {
            let size = format!("remount,size={}", self.used_bytes() + 8192);
            let mut mount = Command::new("mount");
            mount.args(["-o", &size]).arg(&self.directory).stderr(Stdio::null());
            mount.status().is_ok_and(|status| status.success())
        };
        assert!((0..100).any(shrink), "the disk is never full");
    }

    fn used_bytes(&self) -> u64 {
        let output = Command::new("df").args(["--output=used", "-B1"]).arg(&self.directory).output().unwrap();
        String::from_utf8(output.stdout).unwrap().lines().last().unwrap().trim().parse().unwrap()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        Command::new("umount").arg(&self.directory).status().unwrap();
    }
}

fn assert_full(ran: &Ran) {
    ran.assert_error(30, &["\nhint: ", "is full"]);
    let is_told = ran.stderr.contains("the whole set needs about");
    assert!(is_told, "it does not say how much is needed: {ran}");
}

#[test]
fn a_repository_on_a_disk_that_is_too_small() {
    let place = Place::new("full_repo");
    let Some(disk) = SmallDisk::mount(&place.repo(), "size=1g,mode=0755") else { return };
    let arguments = place.backup_arguments();
    let earlier = place.backup_label(&arguments);
    let base_bytes = disk.used_bytes();
    place.run_well(&arguments);
    let set_bytes = disk.used_bytes() - base_bytes;
    place.forget_sets_but(Some(&earlier));
    let sizes = (0..18).map(|step| (64 << 10) + (set_bytes - (128 << 10)) * step / 17);
    for room_bytes in sizes.chain([set_bytes - (16 << 10)]) {
        disk.resize(&format!("size={}", (base_bytes + room_bytes).next_multiple_of(4096)));
        let ran = place.run(&arguments);
        if ran.code == Some(0) {
            // Each backup has a little other WAL; near the end it may fit after all.
            assert!(room_bytes * 10 > set_bytes * 8, "{room_bytes} of {set_bytes} bytes: {ran}");
            place.forget_sets_but(Some(&earlier));
            continue;
        }
        assert_full(&ran);
        assert_eq!(place.complete_sets(), std::slice::from_ref(&earlier), "{room_bytes} bytes");
        place.assert_no_leftovers();
        assert_eq!(disk.used_bytes(), base_bytes, "room was not given back");
    }
    place.assert_sound(&earlier);
    place.assert_server_is_free();
    disk.resize("size=1g");
    place.run_well(&arguments);
    place.assert_no_leftovers();
}

#[test]
fn a_repository_without_inodes() {
    let place = Place::new("full_inodes");
    let Some(disk) = SmallDisk::mount(&place.repo(), "size=1g,nr_inodes=1000,mode=0755") else { return };
    let arguments = place.backup_arguments();
    let earlier = place.backup_label(&arguments);
    let used = Command::new("df").args(["--output=iused"]).arg(&disk.directory).output().unwrap();
    let used: u32 = String::from_utf8(used.stdout).unwrap().lines().last().unwrap().trim().parse().unwrap();
    let mut failed_count = 0;
    for more in 0..8 {
        disk.resize(&format!("nr_inodes={}", used + more));
        let ran = place.run(&arguments);
        if ran.code == Some(0) {
            place.forget_sets_but(Some(&earlier));
            continue;
        }
        failed_count += 1;
        ran.assert_error(30, &["\nhint: ", "full"]);
        place.assert_no_leftovers_after(&format!("{more} inodes: {ran}"));
        assert_eq!(place.complete_sets(), std::slice::from_ref(&earlier));
    }
    assert!(failed_count >= 3, "{failed_count} backups without an inode failed");
    place.assert_sound(&earlier);
}

#[test]
fn a_new_repository_on_a_full_disk() {
    let place = Place::new("full_new");
    let Some(disk) = SmallDisk::mount(&place.repo(), "size=64k,mode=0755") else { return };
    std::fs::write(place.repo().join("lost+found"), vec![1; 64 << 10]).ok();
    let ran = place.run(&place.backup_arguments());
    ran.assert_error(30, &["\nhint: "]);
    std::fs::remove_file(place.repo().join("lost+found")).unwrap();
    disk.resize("size=1g");
    place.run_well(&place.backup_arguments());
    place.assert_no_leftovers();
}

#[test]
fn a_target_that_is_too_small_is_refused_before_the_first_byte() {
    let place = Place::new("full_target");
    let label = place.backup_label(&place.backup_arguments());
    let target = place.directory.join("target");
    let Some(disk) = SmallDisk::mount(&target, "size=8m,mode=0700") else { return };
    let ran = place.run(&place.restore_arguments(&target));
    ran.assert_error(60, &["\nhint: ", "MiB are needed", "8.0 MiB are free", &target.display().to_string()]);
    assert_eq!(std::fs::read_dir(&target).unwrap().count(), 0, "nothing was written");
    drop(disk);
    place.assert_sound(&label);
}

#[test]
fn a_target_that_becomes_full_on_the_way() {
    let place = Place::new("full_midway");
    place.run_well(&place.backup_arguments());
    let target = place.directory.join("target");
    let Some(disk) = SmallDisk::mount(&target, "size=1g,mode=0700") else { return };
    let quick = place.restore_arguments(&target);
    for delay_ms in [0, 500, 1500] {
        let slow = [quick.clone(), ["--max-rate", "600kB/s"].map(str::to_owned).into()].concat();
        let slow: Vec<&str> = slow.iter().map(String::as_str).collect();
        let child = place.pagehaul(&slow).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        while !target.join("base").exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(delay_ms));
        disk.fill();
        let ran = Ran::from(child.wait_with_output().unwrap());
        ran.assert_error(60, &["\nhint: ", "full"]);
        assert_does_not_start(&place, &target);
        disk.resize("size=1g");
    }
    place.run_well(&quick);
    place.assert_whole(&target);
}

#[test]
fn a_target_without_inodes() {
    let place = Place::new("full_target_inodes");
    place.run_well(&place.backup_arguments());
    let target = place.directory.join("target");
    for inodes in [5, 50, 500] {
        let Some(_disk) = SmallDisk::mount(&target, &format!("size=1g,nr_inodes={inodes},mode=0700")) else { return };
        place.run(&place.restore_arguments(&target)).assert_error(60, &["\nhint: ", "full"]);
        assert_does_not_start(&place, &target);
    }
}
