//! Other programs, run beside what is measured.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

/// A process that ends when it is dropped or when this one does.
pub struct Process(Child);

/// What programs are told with.
const DEFAULT_SIGNALS: &str = "--default-signal=INT,TERM,USR1";

impl Process {
    /// Starts a program. It is in a group of its own: an interrupt at the terminal is for who started it.
    ///
    /// # Errors
    /// If there is no env, of coreutils. Where there is no setpriv, of util-linux, or no such program, the
    /// process ends at once with code 127.
    pub fn start(
        program: &Path,
        args: &[String],
        stdout: Stdio,
        stderr: Stdio,
    ) -> io::Result<Process> {
        // The signal comes even if this process is killed. env becomes setpriv, and that the program. What
        // this process has blocked, to receive it, a program inherits as blocked.
        let mut command = Command::new("env");
        command.args([DEFAULT_SIGNALS, "setpriv", "--pdeathsig", "KILL", "--"]);
        command.arg(program).args(args).process_group(0);
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).spawn().map(Process)
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// What it prints, if that was asked for and has not been taken.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.0.stdout.take()
    }

    /// How it has ended; `None` while it runs.
    ///
    /// # Errors
    /// What the system says.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.0.try_wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
