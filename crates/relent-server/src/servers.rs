//! Real servers for tests and benchmarks. Each runs in its own directory with a Unix socket, so ports cannot collide.
//! Servers end when dropped.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    missing_docs,
    unreachable_pub,
    reason = "it is part of several test binaries, each of which uses some of it"
)]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A server that this process has started.
#[derive(Debug)]
pub struct Server {
    child: Child,
    signal: &'static str,
    directory: Option<TempDir>,
}

impl Server {
    pub fn directory(&self) -> &Path {
        self.directory.as_ref().unwrap().path()
    }

    /// Ends the server, and returns its directory.
    pub fn end(mut self) -> TempDir {
        self.directory.take().unwrap()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: &str) {
        signal_to(&self.child, signal);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A stopped process must continue before it can end.
        signal_to(&self.child, self.signal);
        signal_to(&self.child, "CONT");
        // PostgreSQL waits forever for a child process that it started during its shutdown.
        let patience = Instant::now() + Duration::from_secs(20);
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > patience {
                drop(self.child.kill());
                drop(self.child.wait());
                return;
            }
            sleep(Duration::from_millis(5));
        }
    }
}

fn signal_to(child: &Child, signal: &str) {
    let process = child.id().to_string();
    drop(Command::new("kill").args(["-s", signal, &process]).status());
}

/// Returns the path of a program; `None` if it is not installed. In CI a missing program is a failure.
fn program(name: &str, places: &[PathBuf], package: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .chain(places.iter().cloned())
        .map(|place| place.join(name))
        .find(|program| program.is_file());
    if found.is_none() {
        let missing = format!("{name} is not installed: apt-get install {package}");
        assert!(
            std::env::var_os("CI").is_none_or(|ci| ci != "true"),
            "{missing}"
        );
        eprintln!("skipped, since {missing}");
    }
    found
}

fn until(what: &str, mut ready: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(60);
    while !ready() {
        assert!(Instant::now() < patience, "{what} does not begin");
        sleep(Duration::from_millis(20));
    }
}

/// Creates a directory for the data of a server. `scripts/test` names a file system in memory: the servers start sooner
/// there.
fn new_directory() -> TempDir {
    match std::env::var_os("RELENT_DATABASES") {
        Some(folder) => TempDir::new_in(folder).unwrap(),
        None => tempfile::tempdir().unwrap(),
    }
}

pub struct Redis {
    pub server: Server,
}

/// Starts Redis with these settings; `None` if it is not installed.
pub fn redis(settings: &[&str]) -> Option<Redis> {
    redis_in(new_directory(), settings)
}

/// Starts Redis in an existing directory.
pub fn redis_in(directory: TempDir, settings: &[&str]) -> Option<Redis> {
    let program = program("redis-server", &[], "redis-server")?;
    let mut command = Command::new(program);
    command
        .args(["--port", "0", "--unixsocket", "socket", "--save", ""])
        .args(settings)
        .current_dir(directory.path())
        .stdout(Stdio::null());
    let child = command.spawn().unwrap();
    let server = Server {
        child,
        signal: "KILL",
        directory: Some(directory),
    };
    let redis = Redis { server };
    until("redis-server", || {
        let answer = UnixStream::connect(redis.socket()).and_then(|mut socket| {
            socket.write_all(b"PING\r\n")?;
            let mut answer = [0; 5];
            socket.read_exact(&mut answer)?;
            Ok(answer)
        });
        answer.is_ok_and(|answer| &answer == b"+PONG")
    });
    Some(redis)
}

impl Redis {
    pub fn socket(&self) -> PathBuf {
        self.server.directory().join("socket")
    }

    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }
}

pub struct Postgres {
    pub server: Server,
}

/// Starts PostgreSQL with these settings (`name=value`); `None` if it is not installed.
pub fn postgres(settings: &[&str]) -> Option<Postgres> {
    let initdb = postgres_program("initdb")?;
    let directory = new_directory();
    let data = directory.path().join("data");
    copy(&new_cluster(&initdb), &data);
    if let Some((user, group)) = unprivileged(directory.path()) {
        let owner = format!("{user}:{group}");
        let owned = Command::new("chown")
            .args(["-R", &owner])
            .arg(&data)
            .status();
        assert!(owned.unwrap().success(), "{}", data.display());
    }
    postgres_in(directory, settings)
}

/// Returns the data directory of a new cluster. `initdb` takes a second, so it runs once for each build folder, and
/// each server gets a copy.
fn new_cluster(initdb: &Path) -> PathBuf {
    let version = Command::new(initdb).arg("--version").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    let program = std::env::current_exe().unwrap();
    let build = program.ancestors().nth(2).unwrap();
    let cluster = build.join(version.trim().replace(['/', ' '], "-"));
    if !cluster.exists() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        let made = as_user(initdb, directory.path())
            .args([
                "--no-sync",
                "--auth=trust",
                "--username=relent",
                "--encoding=UTF8",
            ])
            .arg("--pgdata")
            .arg(&data)
            .status()
            .unwrap();
        assert!(made.success(), "initdb: {made}");
        // Another program may do the same now: the first one wins, and no program sees a part.
        let complete = tempfile::tempdir_in(build).unwrap();
        let complete = complete.path().join("data");
        copy(&data, &complete);
        let renamed = fs::rename(&complete, &cluster);
        assert!(renamed.is_ok() || cluster.exists(), "{renamed:?}");
    }
    cluster
}

/// Copies a directory. Its owner is the user of this process.
fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-R").args([from, to]).status();
    assert!(copied.unwrap().success(), "{}", from.display());
}

/// Starts PostgreSQL in an existing directory.
pub fn postgres_in(directory: TempDir, settings: &[&str]) -> Option<Postgres> {
    postgres_on(directory, 5432, settings)
}

/// Starts PostgreSQL in an existing directory with this port.
pub fn postgres_on(directory: TempDir, port: u16, settings: &[&str]) -> Option<Postgres> {
    let [program, pg_isready] = ["postgres", "pg_isready"].map(postgres_program);
    let (program, pg_isready) = (program?, pg_isready?);
    let path = directory.path();
    let mut start = as_user(&program, path);
    start.arg("-D").arg(path.join("data"));
    let directories = [
        format!("port={port}"),
        "listen_addresses=".to_owned(),
        format!("unix_socket_directories={}", path.display()),
    ];
    for setting in directories
        .iter()
        .map(String::as_str)
        .chain(settings.iter().copied())
    {
        start.args(["-c", setting]);
    }
    let log = fs::File::create(path.join("log")).unwrap();
    let child = start.stderr(log).spawn().unwrap();
    let server = Server {
        child,
        signal: "QUIT",
        directory: Some(directory),
    };
    let postgres = Postgres { server };
    until("postgres", || {
        let ready = Command::new(&pg_isready)
            .arg("-q")
            .arg("-h")
            .arg(postgres.server.directory())
            .args(["-p", &port.to_string()])
            .status();
        ready.is_ok_and(|status| status.success())
    });
    Some(postgres)
}

/// Prepares a command in this directory, as a user that PostgreSQL accepts.
fn as_user(program: &Path, directory: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(directory).stdout(Stdio::null());
    if let Some((user, group)) = unprivileged(directory) {
        command.uid(user).gid(group);
    }
    command
}

/// Returns the path of a PostgreSQL program.
pub fn postgres_program(name: &str) -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let mut places: Vec<_> = versions
        .flatten()
        .map(|version| version.path().join("bin"))
        .collect();
    places.sort();
    places.reverse();
    // Those in the PATH of Debian are scripts that start slowly.
    let place = places.into_iter().find(|place| place.join(name).is_file());
    place
        .map(|place| place.join(name))
        .or_else(|| program(name, &[], "postgresql"))
}

/// PostgreSQL refuses to run as root: another user then owns the directory and runs it.
fn unprivileged(directory: &Path) -> Option<(u32, u32)> {
    let owner = fs::metadata(directory).unwrap();
    if owner.uid() != 0 {
        // Our own directory, or that of a user who has run it before.
        let ours = fs::metadata("/proc/self").map_or(owner.uid(), |own| own.uid());
        return (ours == 0).then(|| (owner.uid(), owner.gid()));
    }
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let find = |name: &str| {
        let user = users
            .lines()
            .find(|line| line.split(':').next() == Some(name))?;
        let mut numbers = user
            .split(':')
            .skip(2)
            .map(|number| number.parse::<u32>().unwrap());
        Some((numbers.next()?, numbers.next()?))
    };
    let user = find("postgres").or_else(|| find("nobody")).unwrap();
    chown(directory, Some(user.0), Some(user.1)).unwrap();
    Some(user)
}

impl Postgres {
    /// Returns a libpq connection string.
    pub fn config(&self) -> String {
        format!(
            "host={} user=relent dbname=postgres",
            self.server.directory().display()
        )
    }
}

pub struct Nats {
    pub server: Server,
    pub port: u16,
}

/// Starts NATS with JetStream; `None` if it is not installed.
pub fn nats() -> Option<Nats> {
    nats_in(new_directory(), None)
}

/// Starts NATS with a configuration, which `settings` creates for the directory.
pub fn nats_with(settings: impl FnOnce(&Path) -> String) -> Option<Nats> {
    let directory = new_directory();
    let settings = settings(directory.path());
    fs::write(directory.path().join(NATS_SETTINGS), settings).unwrap();
    nats_in(directory, None)
}

const NATS_SETTINGS: &str = "nats.conf";

/// Starts NATS in an existing directory, at its former port.
pub fn nats_in(directory: TempDir, port: Option<u16>) -> Option<Nats> {
    let program = program("nats-server", &[PathBuf::from("/usr/sbin")], "nats-server")?;
    let path = directory.path();
    for old in ports_files(path) {
        fs::remove_file(old).unwrap();
    }
    let mut command = Command::new(program);
    let settings = path.join(NATS_SETTINGS);
    if settings.is_file() {
        command.arg("-c").arg(settings);
    }
    let child = command
        .args(["-a", "127.0.0.1", "-p"])
        // NATS chooses a free port and reports it.
        .arg(port.map_or_else(|| "-1".to_owned(), |port| port.to_string()))
        .args(["-js", "-sd"])
        .arg(path)
        .arg("--ports_file_dir")
        .arg(path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let server = Server {
        child,
        signal: "KILL",
        directory: Some(directory),
    };
    let mut found = None;
    until("nats-server", || {
        let file = ports_files(server.directory()).into_iter().next();
        let text = file.and_then(|file| fs::read_to_string(file).ok());
        let port = text.and_then(|text| {
            let end = text.split("://127.0.0.1:").nth(1)?;
            end.split('"').next()?.parse().ok()
        });
        found = port;
        found.is_some()
    });
    Some(Nats {
        server,
        port: found.unwrap(),
    })
}

fn ports_files(directory: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(directory).unwrap().flatten();
    let files = files.map(|file| file.path());
    files
        .filter(|file| file.extension().is_some_and(|end| end == "ports"))
        .collect()
}

impl Nats {
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Kills the server, and starts it again with its directory.
    pub fn restart(self) -> Self {
        let Self { server, port } = self;
        nats_in(server.end(), Some(port)).unwrap()
    }
}
