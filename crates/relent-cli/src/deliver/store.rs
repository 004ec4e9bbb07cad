//! The message store of `relent deliver serve`: a SQLite file, or PostgreSQL, with TLS unless it is on this machine.

use std::error::Error;
use std::fmt;
use std::fs::OpenOptions;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use relent_outbox::sender::certificates;
use relent_outbox::store::{Postgres, Sqlite, SqliteError};
use relent_server::postgres::pool_of;
use relent_server::sqlite::WriterError;
use rusqlite::ErrorCode;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

/// The default of `--store`.
pub(super) const STORE: &str = "sqlite:relent-deliver.db";
/// The number of connections to PostgreSQL.
const POOL_SIZE: usize = 16;

/// The store that `--store` names.
#[derive(Clone, Debug)]
pub(super) enum StoreLocation {
    Sqlite(PathBuf),
    Postgres(Box<Config>),
}

impl fmt::Display for StoreLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            // Other parts of the description may contain a password.
            Self::Postgres(config) => {
                let database = config.get_dbname().unwrap_or("of the user");
                write!(f, "postgres, database {database}")?;
                for (at, host) in config.get_hosts().iter().enumerate() {
                    // A single port applies to all hosts.
                    let ports = config.get_ports();
                    let port = ports.get(at).or(ports.first()).unwrap_or(&5432);
                    match host {
                        Host::Tcp(name) => write!(f, " at {name}:{port}")?,
                        Host::Unix(folder) => write!(f, " in {}", folder.display())?,
                    }
                }
                Ok(())
            }
        }
    }
}

/// Reads the value of `--store`.
pub(super) fn read(text: &str) -> Result<StoreLocation, String> {
    if let Some(path) = text.strip_prefix("sqlite:").filter(|path| !path.is_empty()) {
        return Ok(StoreLocation::Sqlite(path.into()));
    }
    let is_url = text.starts_with("postgres://") || text.starts_with("postgresql://");
    let config = match is_url {
        true => Some(text),
        false => text.strip_prefix("postgres:"),
    };
    let config = config.ok_or_else(|| {
        format!("use sqlite: and a file, such as {STORE}, or postgres://USER@HOST/DATABASE")
    })?;
    // TLS here always verifies the server, also with `sslmode=require`.
    let config = config.replace("sslmode=verify-full", "sslmode=require");
    let mut config: Config = config.parse().map_err(|error: tokio_postgres::Error| {
        let why = error.source().map_or_else(String::new, |why| format!(": {why}"));
        format!("{error}{why}; sslmode is disable, require or verify-full, and certificates are named by --store-ca")
    })?;
    // The default of libpq, "prefer", protects against no attacker.
    if config.get_ssl_mode() == SslMode::Prefer {
        config.ssl_mode(match is_local(&config) {
            true => SslMode::Disable,
            false => SslMode::Require,
        });
    }
    Ok(StoreLocation::Postgres(Box::new(config)))
}

/// Whether all connections stay on this machine.
fn is_local(config: &Config) -> bool {
    let hosts = config.get_hosts().iter().all(|host| match host {
        Host::Tcp(name) => match name.parse::<IpAddr>() {
            Ok(address) => address.is_loopback(),
            Err(_) => name.eq_ignore_ascii_case("localhost"),
        },
        Host::Unix(_) => true,
    });
    hosts && config.get_hostaddrs().iter().all(IpAddr::is_loopback)
}

/// Opens the database; a new file can be read by its owner only.
pub(super) fn open(path: &Path) -> Result<Sqlite, String> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| {
            let folder = folder_of(path).display();
            format!("cannot be opened, or created in the folder {folder}: {error}")
        })?;
    Sqlite::open(path).map_err(|error| match is_locked(&error) {
        true => "is locked by another process, such as a sqlite3 shell with an open transaction: end it and start again"
            .to_owned(),
        false => error.to_string(),
    })
}

/// Whether another process has locked the database.
fn is_locked(error: &SqliteError) -> bool {
    let code = match error {
        SqliteError::Writer(WriterError::Sqlite(error)) => error.sqlite_error_code(),
        _ => None,
    };
    matches!(
        code,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

/// The folder of a file.
pub(super) fn folder_of(path: &Path) -> &Path {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Connects to the database, and creates missing tables.
pub(super) async fn connect(config: &Config, ca: Option<&Path>) -> Result<Postgres, String> {
    let mut config = config.clone();
    if let Ok(password) = std::env::var("PGPASSWORD")
        && config.get_password().is_none()
    {
        config.password(password);
    }
    let store = if config.get_ssl_mode() == SslMode::Disable {
        if ca.is_some() {
            return Err("--store-ca is for a connection with TLS: add sslmode=require".to_owned());
        }
        let pool = pool_of(config.clone(), NoTls, POOL_SIZE).map_err(|error| error.to_string())?;
        Postgres::new(pool).listen(config, NoTls)
    } else {
        let tls = MakeRustlsConnect::new(tls(ca)?);
        let pool =
            pool_of(config.clone(), tls.clone(), POOL_SIZE).map_err(|error| error.to_string())?;
        Postgres::new(pool).listen(config, tls)
    };
    store
        .create_tables()
        .await
        .map_err(|error| error.to_string())?;
    Ok(store)
}

/// TLS that trusts only this CA, or the CAs of the system if none is given.
fn tls(ca: Option<&Path>) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let Some(file) = ca else {
        let builder = builder.with_platform_verifier().map_err(|error| {
            format!(
                "the certificates of the system cannot be used: {error}; name a CA with --store-ca"
            )
        })?;
        return Ok(builder.with_no_client_auth());
    };
    let wrong = |error: &dyn fmt::Display| format!("--store-ca {}: {error}", file.display());
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file).map_err(|error| wrong(&error))? {
        roots.add(certificate).map_err(|error| wrong(&error))?;
    }
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]
    use super::*;

    fn mode(text: &str) -> SslMode {
        match read(text).unwrap() {
            StoreLocation::Postgres(config) => config.get_ssl_mode(),
            other @ StoreLocation::Sqlite(_) => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_remote_database_requires_tls_unless_disabled() {
        for elsewhere in [
            "postgres://relent@db.internal/outbox",
            "postgres://relent@10.0.0.7/outbox",
            "postgres://relent@db.internal/outbox?sslmode=require",
            "postgres://relent@db.internal/outbox?sslmode=verify-full&connect_timeout=3",
            "postgres://relent@db.internal/outbox?sslmode=prefer",
            "postgres://relent@localhost,db.internal/outbox",
            "postgres://relent@localhost/outbox?sslmode=require",
            "postgres:host=db.internal dbname=outbox",
            "postgres:host=localhost hostaddr=10.0.0.7 dbname=outbox",
        ] {
            assert_eq!(mode(elsewhere), SslMode::Require, "{elsewhere}");
        }
        for here in [
            "postgres://relent@localhost/outbox",
            "postgres://relent@127.0.0.1/outbox",
            "postgres://relent@%2Frun%2Fpostgresql/outbox",
            "postgres:host=/run/postgresql dbname=outbox",
            "postgres:host=::1 dbname=outbox",
            "postgres://relent@db.internal/outbox?sslmode=disable",
        ] {
            assert_eq!(mode(here), SslMode::Disable, "{here}");
        }
    }

    #[test]
    fn an_invalid_store_is_refused_with_the_accepted_formats() {
        for (wrong, says) in [
            ("relent-deliver.db", "use sqlite: and a file"),
            ("sqlite:", "use sqlite: and a file"),
            (
                "postgres://db/outbox?sslmode=verify-ca",
                "disable, require or verify-full",
            ),
            ("postgres://db/outbox?sslrootcert=ca.pem", "--store-ca"),
        ] {
            let error = read(wrong).unwrap_err();
            assert!(error.contains(says), "{wrong}: {error}");
        }
    }
}
