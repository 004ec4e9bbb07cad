//! Tests of `relent deliver` with NATS authentication; skipped without a nats-server.
#![allow(
    dead_code,
    reason = "tests may, and the helpers are those of others too"
)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nkeys::KeyPair;
use rcgen::{CertificateParams, CertifiedIssuer, IsCa, KeyPair as CertificateKey};
use serde_json::{Value, json};

use crate::deliver_support::{INSIDE, Receiver, Server};
use crate::servers;
use crate::support::{finish, relent};

/// Checks that a message is delivered by a `serve` and a `worker` with these options.
fn delivers(serve: &[&str], work: &[&str]) {
    let receiver = Receiver::start();
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_with(folder.path(), &[&INSIDE[..], serve].concat());
    let endpoint = json!({ "url": receiver.url("/") }).to_string();
    assert_eq!(server.ask("PUT", "/v1/endpoints/shop", &endpoint).0, 201);
    let args = [&["deliver", "worker"], &INSIDE[..], work].concat();
    let work = relent(&args).spawn().unwrap();
    let message = json!({ "endpoint": "shop", "event": "e", "payload": {} }).to_string();
    let (_, sent) = server.ask("POST", "/v1/messages", &message);
    server.message_is(sent["id"].as_str().unwrap(), "delivered");
    assert_eq!(receiver.seen().len(), 1);
    kill(Pid::from_raw(work.id() as i32), Signal::SIGTERM).unwrap();
    let ran = finish(work);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(!ran.stderr.contains("refuse"), "{}", ran.stderr);
    assert_eq!(server.stop(Signal::SIGTERM), Some(0));
}

/// Checks that a `worker` with these options is refused, reports `wrong`, keeps trying, and ends on SIGTERM.
fn says(work: &[&str], wrong: &str) {
    let args = [&["deliver", "worker"], work].concat();
    let mut process = relent(&args).spawn().unwrap();
    let mut said = BufReader::new(process.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains(wrong), "{work:?}: {line}");
    let asked = Instant::now();
    kill(Pid::from_raw(process.id() as i32), Signal::SIGTERM).unwrap();
    let rest = thread::spawn(move || std::io::read_to_string(said).unwrap());
    assert_eq!(process.wait().unwrap().code(), Some(0));
    assert!(asked.elapsed() < Duration::from_secs(20));
    let rest = rest.join().unwrap();
    assert!(!rest.contains("connected"), "{rest}");
}

const REFUSED: &str = "NATS refuses this user: give valid credentials";

/// Each user has exactly the permissions of docs/operating-deliver.md.
#[test]
fn nats_users_need_only_the_documented_permissions() {
    let users = r#"authorization { users: [
        { user: serve, password: "one", permissions: {
            publish: ["relent-outbox.attempts", "_INBOX.>", "$JS.API.>", "$JS.ACK.>"],
            subscribe: ["relent-outbox.relay.>", "_INBOX.>"] } },
        { user: work, password: "t@o", permissions: {
            publish: ["relent-outbox.relay.>", "_INBOX.>", "$JS.API.>", "$JS.ACK.>"],
            subscribe: ["_INBOX.>"] } },
    ] }"#;
    let Some(nats) = servers::nats_with(|_| users.to_owned()) else {
        return;
    };
    let url = |user: &str| format!("nats://{user}@127.0.0.1:{}", nats.port);
    delivers(
        &["--nats", &url("serve:one")],
        &["--nats", &url("work:t%40o")],
    );
    says(&["--nats", &url("work:one")], REFUSED);
    says(&["--nats", &nats.url()], REFUSED);
}

#[test]
fn a_nats_token_authenticates() {
    let Some(nats) = servers::nats_with(|_| "authorization { token: sesame }".to_owned()) else {
        return;
    };
    let url = format!("nats://sesame@127.0.0.1:{}", nats.port);
    delivers(&["--nats", &url], &["--nats", &url]);
    let url = format!("nats://simsim@127.0.0.1:{}", nats.port);
    says(&["--nats", &url], REFUSED);
}

/// A NATS token of a user or an account, signed by `by`.
fn vouched(by: &KeyPair, of: &str, name: &str, more: &Value) -> String {
    let header = json!({ "typ": "JWT", "alg": "ed25519-nkey" });
    let claims = json!({
        "jti": name, "iat": 1_700_000_000, "iss": by.public_key(), "name": name, "sub": of, "nats": more,
    });
    let [header, claims] =
        [header, claims].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part.to_string()));
    let text = format!("{header}.{claims}");
    let signature = BASE64_URL_SAFE_NO_PAD.encode(by.sign(text.as_bytes()).unwrap());
    format!("{text}.{signature}")
}

fn credentials(file: &Path, account: &KeyPair) {
    let user = KeyPair::new_user();
    let more = json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {} });
    let token = vouched(account, &user.public_key(), "relent", &more);
    let seed = user.seed().unwrap();
    let text = format!(
        "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    );
    fs::write(file, text).unwrap();
}

#[test]
fn a_nats_credentials_file_authenticates() {
    let (operator, account) = (KeyPair::new_operator(), KeyPair::new_account());
    let name = operator.public_key();
    let operator_token = vouched(
        &operator,
        &name,
        "operator",
        &json!({ "type": "operator", "version": 2 }),
    );
    let mut more = json!({ "type": "account", "version": 2, "limits": {
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
    } });
    // NATS publishes its own events in a system account, which has no JetStream.
    let system = KeyPair::new_account().public_key();
    let system_token = vouched(&operator, &system, "system", &more);
    for limit in ["mem_storage", "disk_storage", "streams", "consumer"] {
        more["limits"][limit] = json!(-1);
    }
    let account_name = account.public_key();
    let account_token = vouched(&operator, &account_name, "account", &more);
    let settings = |_: &Path| {
        format!(
            "operator: {operator_token}\nsystem_account: {system}\nresolver: MEMORY\n\
             resolver_preload: {{ {account_name}: {account_token}, {system}: {system_token} }}\n"
        )
    };
    let Some(nats) = servers::nats_with(settings) else {
        return;
    };
    let url = nats.url();
    let [known, unknown] =
        ["known.creds", "unknown.creds"].map(|name| nats.server.directory().join(name));
    credentials(&known, &account);
    let known = known.to_str().unwrap();
    let args = ["--nats", &url, "--nats-creds", known];
    delivers(&args, &args);
    credentials(&unknown, &KeyPair::new_account());
    says(
        &["--nats", &url, "--nats-creds", unknown.to_str().unwrap()],
        REFUSED,
    );
}

/// Certificates of a private CA: one for the server, and one for its clients.
#[test]
fn nats_works_with_mutual_tls() {
    let settings = |directory: &Path| {
        let key = CertificateKey::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, key).unwrap();
        fs::write(directory.join("ca.pem"), authority.pem()).unwrap();
        for (name, host) in [("server", "127.0.0.1"), ("client", "relent")] {
            let key = CertificateKey::generate().unwrap();
            let params = CertificateParams::new([host.to_owned()]).unwrap();
            let certificate = params.signed_by(&key, &authority).unwrap();
            fs::write(
                directory.join(name).with_extension("pem"),
                certificate.pem(),
            )
            .unwrap();
            fs::write(
                directory.join(name).with_extension("key"),
                key.serialize_pem(),
            )
            .unwrap();
        }
        let place = directory.display();
        format!(
            "tls {{ cert_file: \"{place}/server.pem\", key_file: \"{place}/server.key\", ca_file: \"{place}/ca.pem\", verify: true }}"
        )
    };
    let Some(nats) = servers::nats_with(settings) else {
        return;
    };
    let url = format!("tls://127.0.0.1:{}", nats.port);
    let [ca, cert, key] = ["ca.pem", "client.pem", "client.key"]
        .map(|name| nats.server.directory().join(name).display().to_string());
    let args = [
        "--nats",
        &url,
        "--nats-ca",
        &ca,
        "--nats-cert",
        &cert,
        "--nats-key",
        &key,
    ];
    delivers(&args, &args);
    let without_certificate = &args[..4];
    says(without_certificate, "--nats-cert");
    let without_authority = [&args[..2], &args[4..]].concat();
    says(&without_authority, "signed by a CA in --nats-ca");
    // The certificate is for the IP address, not for this name.
    let other = format!("tls://localhost:{}", nats.port);
    says(
        &[&["--nats", &other], &args[2..]].concat(),
        "is its certificate for that host",
    );
}
