//! Microsoft's own parser of T-SQL, where it is installed: it lies in the Python package mssql-cli 1.0.0 together with a
//! .NET Core that runs it, and mono's compiler makes the little program that asks it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

const PROGRAM: &str = "MicrosoftSqlToolsServiceLayer";
const SOURCE: &str = r#"
using System; using System.Collections.Generic; using System.IO; using Microsoft.SqlServer.TransactSql.ScriptDom;
class Check {
    static int Main() {
        var parser = new TSql150Parser(true);
        IList<ParseError> errors;
        parser.Parse(new StringReader(Console.In.ReadToEnd()), out errors);
        foreach (var error in errors) Console.WriteLine(error.Line + ":" + error.Column + ": " + error.Message);
        Console.WriteLine("errors: " + errors.Count);
        return 0;
    }
}
"#;

/// The parser of SQL Server 2019.
pub struct ScriptDom {
    directory: TempDir,
}

impl ScriptDom {
    /// The parser in the Python packages below `PAGEHAUL_TEST_MSSQL_DIR`; None, and said so, where there is none or no
    /// compiler.
    pub fn find() -> Option<Self> {
        let packages = std::env::var_os("PAGEHAUL_TEST_MSSQL_DIR").map(PathBuf::from);
        let bin = packages.map(|packages| packages.join("mssqlcli/mssqltoolsservice/bin"));
        let Some(bin) = bin.filter(|bin| bin.is_dir()) else {
            eprintln!("SKIPPED: PAGEHAUL_TEST_MSSQL_DIR has no mssqlcli of mssql-cli 1.0.0: T-SQL is not parsed");
            return None;
        };
        let directory = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(&bin).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
            let name = entry.file_name().to_string_lossy().into_owned();
            // The host looks for the libraries beside itself, so it must be no link.
            if name.starts_with(PROGRAM) {
                std::fs::copy(entry.path(), directory.path().join(&name)).unwrap();
            } else {
                std::os::unix::fs::symlink(entry.path(), directory.path().join(&name)).unwrap();
            }
        }
        let parser = ScriptDom { directory };
        parser.compile(&bin).then_some(parser)
    }

    fn compile(&self, bin: &Path) -> bool {
        let source = self.directory.path().join("check.cs");
        std::fs::write(&source, SOURCE).unwrap();
        let referred = |name: &str| {
            let wanted = ["netstandard", "System.Private.CoreLib", "System.Console", "System.Collections"];
            let is_wanted = wanted.iter().any(|start| name == format!("{start}.dll"));
            is_wanted
                || name.contains("ScriptDom")
                || name.starts_with("System.Runtime")
                || name.starts_with("System.IO")
        };
        let mut compiler = Command::new("mcs");
        compiler.args(["-nostdlib", "-noconfig", "-target:exe"]);
        compiler.arg(format!("-out:{}/{PROGRAM}.dll", self.directory.path().display()));
        for entry in std::fs::read_dir(bin).unwrap().map(Result::unwrap) {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(".dll") && referred(&name) {
                compiler.arg(format!("-r:{}", entry.path().display()));
            }
        }
        let Ok(output) = compiler.arg(&source).output() else {
            eprintln!("SKIPPED: mcs (mono-mcs) is not installed");
            return false;
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
        use std::os::unix::fs::PermissionsExt;
        let program = self.directory.path().join(PROGRAM);
        std::fs::set_permissions(program, std::fs::Permissions::from_mode(0o755)).unwrap();
        true
    }

    /// What it says of `script`, whose batches are divided by GO: a line an error.
    pub fn errors(&self, script: &str) -> Vec<String> {
        use std::io::Write;
        let mut child = Command::new(self.directory.path().join(PROGRAM))
            .env("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(older_form(script).as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let last = lines.pop().unwrap_or_default();
        assert_eq!(last, format!("errors: {}", lines.len()), "the parser did not come to its end: {text}");
        lines
    }
}

/// The same without what is newer than the parser: algorithms of compression, URLs of S3, METADATA_ONLY.
fn older_form(script: &str) -> String {
    let mut text = script.replace("METADATA_ONLY", "SNAPSHOT").replace("URL = N'", "DISK = N'");
    while let Some(start) = text.find("COMPRESSION (ALGORITHM") {
        let end = start + text[start..].find(')').unwrap();
        text.replace_range(start + "COMPRESSION".len()..=end, "");
    }
    text
}
