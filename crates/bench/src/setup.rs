//! What every bench needs: the cluster, the tools, the places, the stopwatch.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use pagehaul_engine::error::{Error, ErrorKind, Result};

use crate::cluster::{Cluster, Owner, remove_tree};
use crate::load;
use crate::machine;
use crate::options::BenchOptions;
use crate::workload::FileList;
use pagehaul_tune::contestants::stopwatch::{Stopwatch, go_on};
use pagehaul_tune::contestants::{Place, ServerAddress};

/// Everything a contestant needs to run.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) cluster: Cluster,
    /// How other tools reach it.
    pub(crate) server: ServerAddress,
    /// Copies that the cluster's owner may run.
    pub(crate) pagehaul: PathBuf,
    pub(crate) own_program: PathBuf,
    /// For repositories and restored clusters; belongs to the cluster's owner.
    pub(crate) work: PathBuf,
    pub(crate) stopwatch: Stopwatch<'static>,
    /// What a backup holds.
    pub(crate) files: FileList,
    /// The list of it, for baseline processes.
    pub(crate) file_list: PathBuf,
    pub(crate) cores: u16,
    only: Vec<String>,
}

/// Where a bench works: a directory of its own even in a given one, because it is removed at the end.
pub(crate) fn work_directory(options: &BenchOptions) -> PathBuf {
    options.work.as_ref().unwrap_or(&options.pgdata_root).join("pagehaul-bench-work")
}

/// The error of a file of ours that cannot be written.
pub(crate) fn unwritable(path: &Path, cause: std::io::Error) -> Error {
    Error::new(ErrorKind::Target, format!("write {}", path.display()), cause)
}

impl Setup {
    /// On the cluster that `options` name or that is made for them.
    ///
    /// # Errors
    /// `Configuration` and `Target` with what is missing.
    pub(crate) fn usual(options: &BenchOptions) -> Result<Self> {
        let cluster = match &options.pgdata {
            Some(pgdata) => Cluster::adopt(pgdata)?,
            None => {
                let (root, scale) = (&options.pgdata_root, options.scale);
                let script = root.join("load.sql");
                let name = format!("main-scale{scale}");
                Cluster::open_or_make(root, &name, |cluster| load::main_data(cluster, scale, &script))?
            }
        };
        Self::on(cluster, options)
    }

    /// On `cluster`, with an empty work directory and the source read once.
    ///
    /// # Errors
    /// `Configuration` and `Target` with what is missing.
    pub(crate) fn on(cluster: Cluster, options: &BenchOptions) -> Result<Self> {
        let owner = cluster.owner;
        let work = work_directory(options);
        owner.create_directory(&work)?;
        let work = work.canonicalize().map_err(|cause| unwritable(&work, cause))?;
        let programs = work.join("bin");
        owner.create_directory(&programs)?;
        let own = std::env::current_exe().map_err(|cause| unwritable(&programs, cause))?;
        let pagehaul = copy_program(&options.pagehaul, &programs)?;
        let own_program = copy_program(&own, &programs)?;
        let logs = work.join("logs");
        owner.create_directory(&logs)?;
        let files = FileList::of(&cluster.pgdata)?;
        let file_list = logs.join("files.txt");
        files.write(&file_list)?;
        owner.take(&file_list)?;
        let stopwatch = Stopwatch { directory: logs, postmaster: Some(cluster.postmaster), stop: &go_on };
        cluster.sql("CHECKPOINT")?;
        let (cores, only) = (machine::cores(), options.only.clone());
        let server = cluster.address();
        let setup = Setup { cluster, server, pagehaul, own_program, work, stopwatch, files, file_list, cores, only };
        setup.read_all_once()?;
        Ok(setup)
    }

    /// Brings the source into the page cache.
    fn read_all_once(&self) -> Result<()> {
        crate::workload::read(self, self.cores).map(drop)
    }

    /// Whether --only lets this contestant run.
    pub(crate) fn wanted(&self, contestant: &str, setting: &str) -> bool {
        let name = format!("{contestant} {setting}");
        self.only.is_empty() || self.only.iter().any(|text| name.contains(text.as_str()))
    }

    /// The place `name` in the work directory, gone if it was there.
    ///
    /// # Errors
    /// `Target`, naming it.
    pub(crate) fn no_place(&self, name: &str) -> Result<PathBuf> {
        let path = self.work.join(name);
        remove_tree(&path)?;
        Ok(path)
    }

    /// The place `name` in the work directory: empty, private, the owner's.
    ///
    /// # Errors
    /// `Target`, naming it.
    pub(crate) fn empty_place(&self, name: &str) -> Result<PathBuf> {
        let path = self.work.join(name);
        self.empty_directory(&path)?;
        Ok(path)
    }

    /// Any directory: empty, private, the owner's.
    ///
    /// # Errors
    /// `Target`, naming it.
    pub(crate) fn empty_directory(&self, path: &Path) -> Result<()> {
        remove_tree(path)?;
        self.owner().create_directory(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).map_err(|cause| unwritable(path, cause))
    }

    /// Where the other tools run.
    pub(crate) fn place(&self) -> Place<'_> {
        Place { work: &self.work, server: &self.server, owner: self.owner().ids(), stopwatch: &self.stopwatch }
    }

    /// Who runs the contestants.
    pub(crate) fn owner(&self) -> Owner {
        self.cluster.owner
    }

    /// What the README says of the data.
    pub(crate) fn data_text(&self) -> String {
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let total_kib = memory.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        let fits = if self.files.bytes / 1024 * 2 > total_kib { "; more than half of memory: not warm" } else { "" };
        format!("{} files, {:.1} MB{fits}", self.files.files.len(), self.files.bytes as f64 / 1e6)
    }
}

/// Copies a program to where every user may run it.
fn copy_program(program: &Path, directory: &Path) -> Result<PathBuf> {
    let to = directory.join(program.file_name().unwrap_or(program.as_os_str()));
    // Not over a copy that may be running.
    if to.exists() {
        std::fs::remove_file(&to).map_err(|cause| unwritable(&to, cause))?;
    }
    std::fs::copy(program, &to).map_err(|cause| {
        Error::new(ErrorKind::Configuration, format!("copy {} to {}", program.display(), to.display()), cause)
    })?;
    std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o755)).map_err(|cause| unwritable(&to, cause))?;
    Ok(to)
}
