//! The trusted certificates and the client certificate.

use std::path::{Path, PathBuf};

use reqwest::{Certificate, ClientBuilder, Identity};

use super::args::FetchArgs;
use crate::exit_status::ExitError;

/// curl's status for a client certificate that cannot be used.
const EXIT_CLIENT_CERT: i32 = 58;
/// curl's status for trusted certificates that cannot be read.
const EXIT_CA_CERT: i32 = 77;

/// The files that the options name.
pub(crate) struct Files {
    cacert: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    insecure: bool,
}

impl Files {
    /// The files of a command line.
    pub(crate) fn named(args: &FetchArgs) -> Self {
        Self {
            cacert: args.cacert.clone(),
            cert: args.cert.clone(),
            key: args.key.clone(),
            insecure: args.insecure,
        }
    }
}

/// The TLS settings of the client.
#[derive(Clone)]
pub(crate) struct Trust {
    /// The trusted certificates, instead of those of the system.
    only: Option<Vec<Certificate>>,
    identity: Option<Identity>,
    insecure: bool,
}

impl Trust {
    /// Reads the certificates that the options name, and checks that those of the environment can be
    /// read: otherwise the system's would be trusted, or none. `needed`: the fetch may use TLS.
    ///
    /// # Errors
    /// [`EXIT_CA_CERT`] or [`EXIT_CLIENT_CERT`], with the file and what is wrong with it.
    pub(crate) fn choose(files: &Files, needed: bool) -> Result<Self, ExitError> {
        let trusted = |message| ExitError {
            status: EXIT_CA_CERT,
            message,
        };
        let only = match &files.cacert {
            Some(file) => Some(
                certificates(file)
                    .map_err(|error| trusted(format!("--cacert {}: {error}", file.display())))?,
            ),
            None => {
                check_environment().map_err(trusted)?;
                // Reading the certificates of the system takes time, and there may be none.
                (!needed).then(Vec::new)
            }
        };
        let identity = files.cert.as_deref().map(|file| {
            let key = files.key.as_deref();
            identity(file, key).map_err(|error| ExitError {
                status: EXIT_CLIENT_CERT,
                message: format!("--cert {}: {error}", file.display()),
            })
        });
        Ok(Self {
            only,
            identity: identity.transpose()?,
            insecure: files.insecure,
        })
    }

    /// Applies the settings to the client.
    pub(crate) fn apply(&self, mut builder: ClientBuilder) -> ClientBuilder {
        if let Some(only) = &self.only {
            builder = builder.tls_certs_only(only.iter().cloned());
        }
        if let Some(identity) = &self.identity {
            builder = builder.identity(identity.clone());
        }
        builder.tls_danger_accept_invalid_certs(self.insecure)
    }
}

fn check_environment() -> Result<(), String> {
    if let Some(file) = std::env::var_os("SSL_CERT_FILE") {
        let file = Path::new(&file);
        certificates(file).map_err(|error| {
            format!(
                "SSL_CERT_FILE={} in the environment: {error}",
                file.display()
            )
        })?;
    }
    if let Some(folders) = std::env::var_os("SSL_CERT_DIR") {
        let mut folders = std::env::split_paths(&folders);
        // As in OpenSSL, some folders may be missing.
        if !folders.any(|folder| std::fs::read_dir(folder).is_ok()) {
            return Err(
                "SSL_CERT_DIR in the environment names no folder that can be read".to_owned(),
            );
        }
    }
    Ok(())
}

fn certificates(file: &Path) -> Result<Vec<Certificate>, String> {
    let pem = std::fs::read(file).map_err(|error| format!("cannot be read: {error}"))?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(all) if all.is_empty() => Err("there is no certificate in it (PEM)".to_owned()),
        Ok(all) => Ok(all),
        Err(_) => Err("a certificate in it is damaged (PEM)".to_owned()),
    }
}

fn identity(cert: &Path, key: Option<&Path>) -> Result<Identity, String> {
    let read = |file: &Path| std::fs::read(file);
    let mut pem = read(cert).map_err(|error| format!("cannot be read: {error}"))?;
    if let Some(key) = key {
        let key = read(key).map_err(|error| format!("--key {}: {error}", key.display()))?;
        pem.push(b'\n');
        pem.extend_from_slice(&key);
    }
    Identity::from_pem(&pem).map_err(|_| {
        "there are no certificate and key in it (PEM, the key without a password)".to_owned()
    })
}
