//! Forbidden targets (SSRF): a listener on the loopback counts connections that reach it.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use relent_core::Policy;
use relent_outbox::endpoint::Acknowledgement;
use relent_outbox::guard::AddressGuard;
use relent_outbox::message::MessageId;
use relent_outbox::resolver::{Resolve, Resolving};
use relent_outbox::sender::{AttemptResult, Outgoing, Sender, SenderConfig};

use crate::support::{self, Receiver, Reply, answer, no_tls, ok};

/// Resolves to these lists of addresses in turn; the last one repeatedly.
struct Answers(Vec<Vec<IpAddr>>, AtomicUsize);

impl Resolve for Answers {
    fn resolve(&self, name: String) -> Resolving {
        assert!(
            name.parse::<IpAddr>().is_err(),
            "an address is not looked up"
        );
        let asked = self.1.fetch_add(1, Ordering::Relaxed);
        let answer = self.0[asked.min(self.0.len() - 1)].clone();
        Box::pin(async move {
            match answer.is_empty() {
                true => Err(io::ErrorKind::NotFound.into()),
                false => Ok(answer),
            }
        })
    }
}

fn sender(guard: AddressGuard, answers: &[&[&str]]) -> Sender {
    let addresses = |list: &&[&str]| list.iter().map(|text| text.parse().unwrap()).collect();
    let mut config = SenderConfig::default();
    config.guard = guard;
    config.http = true;
    config.tls = Some(no_tls());
    config.connect_timeout = Duration::from_millis(500);
    config.resolver = Arc::new(Answers(
        answers.iter().map(addresses).collect(),
        AtomicUsize::new(0),
    ));
    Sender::new(config).unwrap()
}

/// The result of an attempt; `None` if the URL is refused before.
async fn attempt(sender: &Sender, url: &str) -> Option<AttemptResult> {
    let target = sender.target(url).ok()?;
    let outgoing = Outgoing {
        target: &target,
        id: &MessageId::new(),
        content_type: "application/json",
        payload: &Bytes::from_static(b"{}"),
        signing: None,
        custom: None,
        policy: Policy::STANDARD,
        acknowledgement: Acknowledgement::Success,
        limit: Duration::from_secs(1),
        now: SystemTime::now(),
    };
    Some(sender.send(outgoing).await)
}

/// The loopback as a host in all forms that some software accepts.
const HOSTS: [&str; 62] = [
    "127.0.0.1",
    "127.0.0.1.",
    "127.1",
    "127.0.1",
    "127.000.000.001",
    "0177.000.0.1",
    "0177.0.0.1",
    "0177.0.0.01",
    "0177.1",
    "017700000001",
    "00000000177.0.0.1",
    "0x7f.0.0.1",
    "0x7F.0x0.0x0.0x1",
    "0x7f.1",
    "0x7f000001",
    "0X7F000001",
    "0x0000007f000001",
    "2130706433",
    "2130706433.",
    "127.0.0.0x1",
    "127.65793",
    "%31%32%37.0.0.1",
    "127%2e0%2e0%2e1",
    "127。0。0。1",
    "127.0.0。1",
    "１２７.0.0.1",
    "①②⑦.⓪.⓪.①",
    "127.0.0.1%00",
    "127.0.0.1%0d",
    "0",
    "0.0.0.0",
    "0x0",
    "0.0",
    "127.127.127.127",
    "127.255.255.254",
    "localhost",
    "LOCALHOST",
    "localhost.",
    "LocalHost.LocalDomain",
    "127.0.0.1.nip.io",
    "app.localhost",
    "metadata.google.internal",
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[0000:0000:0000:0000:0000:0000:0000:0001]",
    "[::]",
    "[::127.0.0.1]",
    "[::7f00:1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::FFFF:127.0.0.1]",
    "[0:0:0:0:0:ffff:127.0.0.1]",
    "[::ffff:0:127.0.0.1]",
    "[64:ff9b::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b:1::7f00:1]",
    "[2002:7f00:1::]",
    "[fe80::1]",
    "[fe80::1%25lo]",
    "[::1%25lo]",
    "[fd00:ec2::254]",
    "[ff02::1]",
];

/// Other URLs that lead to the loopback, or into a private network. `@` is the port of the listener.
const URLS: [&str; 42] = [
    "http://127.0.0.1:@/?http://shop.example/",
    "http://shop.example@127.0.0.1:@/",
    "http://shop.example:80@127.0.0.1:@/",
    "http://user:password@127.0.0.1:@/",
    "http://127.0.0.1:@#@shop.example/",
    "http://127.0.0.1:@\\@shop.example/",
    "http:\\\\127.0.0.1:@\\",
    "http:/127.0.0.1:@/",
    "http:127.0.0.1:@/",
    "http:///127.0.0.1:@/",
    "  http://127.0.0.1:@/  ",
    "ht\ntp://127.0.0.1:@/",
    "http://127.0.\t0.1:@/",
    "HTTP://127.0.0.1:@/",
    "https://127.0.0.1:@/",
    "//127.0.0.1:@/",
    "127.0.0.1:@",
    "file:///etc/passwd",
    "ftp://127.0.0.1:@/",
    "gopher://127.0.0.1:@/_POST",
    "dict://127.0.0.1:@/",
    "unix:///var/run/docker.sock",
    "ws://127.0.0.1:@/",
    "data:text/plain,127.0.0.1",
    "javascript:127.0.0.1",
    "http+unix://127.0.0.1:@/",
    "http://10.0.0.1:@/",
    "http://172.16.0.1:@/",
    "http://192.168.0.1:@/",
    "http://100.64.0.1:@/",
    "http://169.254.169.254/latest/meta-data/",
    "http://169.254.170.2/",
    "http://168.63.129.16/",
    "http://100.100.100.200/",
    "http://192.0.0.192/",
    "http://0xa9fea9fe/",
    "http://2852039166/",
    "http://0251.0376.0251.0376/",
    "http://[::ffff:169.254.169.254]/",
    "http://shop.example:22/",
    "http://shop.example:25/",
    "http://shop.example:0/",
];

#[tokio::test]
async fn no_form_of_a_forbidden_target_is_reached() {
    let receiver = Receiver::new(|_| ok()).await;
    let port = receiver.address.port();
    let inside = ["127.0.0.1"];
    let hosts = HOSTS.iter().map(|host| format!("http://{host}:{port}/"));
    let others = URLS.iter().map(|url| url.replace('@', &port.to_string()));
    // In URLs with a user, `@` also stands for itself.
    let users = URLS.iter().filter(|url| url.matches('@').count() > 1);
    let users = users.map(|url| match url.rfind(":@") {
        Some(at) => format!("{}:{port}{}", &url[..at], &url[at + 2..]),
        None => (*url).to_owned(),
    });
    let mut tried = 0;
    for url in hosts.chain(others).chain(users) {
        let sender = sender(AddressGuard::new(), &[&inside]);
        if let Some(sent) = attempt(&sender, &url).await {
            let refused = sent.outcome.expect_err(&url);
            assert!(
                refused.error.contains("is not called"),
                "{url}: {}",
                refused.error
            );
            assert_eq!(sent.address, "", "{url}");
        }
        tried += 1;
    }
    assert!(tried >= 100, "{tried}");
    assert_eq!(receiver.hits().len(), 0);
    // The same targets are reached if the operator allows them, so the listener works.
    let allowed = sender(
        AddressGuard::new().allow("127.0.0.0/8".parse().unwrap()),
        &[&inside],
    );
    for host in ["127.0.0.1", "2130706433", "shop.example"] {
        let sent = attempt(&allowed, &format!("http://{host}:{port}/"))
            .await
            .unwrap();
        assert_eq!(sent.outcome, Ok(()), "{host}");
        assert_eq!(sent.address, receiver.address.to_string());
    }
    assert_eq!(receiver.hits().len(), 3);
}

#[tokio::test]
async fn a_name_with_one_forbidden_address_is_refused() {
    let receiver = Receiver::new(|_| ok()).await;
    let url = format!("http://shop.example:{}/", receiver.address.port());
    for addresses in [
        ["127.0.0.1", "93.184.215.14"],
        ["93.184.215.14", "127.0.0.1"],
        ["2606:4700::1", "::1"],
        ["93.184.215.14", "::ffff:10.0.0.1"],
    ] {
        let sent = attempt(&sender(AddressGuard::new(), &[&addresses]), &url)
            .await
            .unwrap();
        assert!(sent.outcome.unwrap_err().error.contains("is not called"));
    }
    assert_eq!(receiver.hits().len(), 0);
}

#[tokio::test]
async fn a_name_is_checked_again_for_each_connection() {
    // Every response closes the connection, so that each attempt opens one.
    let receiver =
        Receiver::new(|_| Reply::Cut(answer("200 OK", "connection: close\r\n", ""))).await;
    let url = format!("http://shop.example:{}/", receiver.address.port());
    // 127.0.0.1 represents a public address; 127.0.0.2 and the others are private.
    let guard = AddressGuard::new().allow("127.0.0.1".parse().unwrap());
    let answers: [&[&str]; 4] = [
        &["127.0.0.1"],
        &["127.0.0.2"],
        &["10.0.0.1"],
        &["127.0.0.1"],
    ];
    let sender = sender(guard, &answers);
    let mut reached = Vec::new();
    for _ in 0..4 {
        reached.push(attempt(&sender, &url).await.unwrap().outcome.is_ok());
    }
    assert_eq!(reached, [true, false, false, true]);
    assert_eq!(receiver.hits().len(), 2);
}

#[tokio::test]
async fn a_checked_connection_is_reused_until_its_age_limit() {
    let receiver = Receiver::new(|_| ok()).await;
    let url = format!("http://shop.example:{}/", receiver.address.port());
    let mut config = support::local();
    let answers = vec![
        vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
        vec![IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1))],
    ];
    config.resolver = Arc::new(Answers(answers, AtomicUsize::new(0)));
    config.connection_age = Duration::from_millis(300);
    let sender = Sender::new(config).unwrap();
    assert_eq!(attempt(&sender, &url).await.unwrap().outcome, Ok(()));
    assert_eq!(
        attempt(&sender, &url).await.unwrap().outcome,
        Ok(()),
        "on the same connection"
    );
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(
        attempt(&sender, &url).await.unwrap().outcome.is_err(),
        "the name is looked up again"
    );
    assert_eq!(receiver.hits().len(), 2);
}

#[tokio::test]
async fn an_outbox_attempt_follows_no_redirect() {
    let inside = Receiver::new(|_| ok()).await;
    let target = inside.url("");
    for status in ["301", "302", "303", "307", "308", "300"] {
        for location in [
            target.as_str(),
            "http://169.254.169.254/",
            "/other",
            "//127.0.0.1/",
        ] {
            let fields = format!("location: {location}\r\n");
            let status_line = format!("{status} Moved");
            let receiver =
                Receiver::new(move |_| Reply::Answer(answer(&status_line, &fields, ""))).await;
            let sender = support::local_sender();
            let sent = attempt(&sender, &receiver.url("")).await.unwrap();
            assert!(
                sent.outcome
                    .unwrap_err()
                    .error
                    .contains("redirects are not followed")
            );
            assert_eq!(receiver.hits().len(), 1);
        }
    }
    assert_eq!(inside.hits().len(), 0);
}

#[tokio::test]
async fn an_attempt_ends_within_its_limit_whatever_the_receiver_does() {
    let receiver = Receiver::new(|hit| match hit.path.as_str() {
        "/hang" => Reply::Hang,
        // A body that does not end.
        "/half" => Reply::Answer(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab".to_vec()),
        "/truncated" => Reply::Cut(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab".to_vec()),
        "/large" => Reply::Answer(answer("200 OK", "", &"a".repeat(1 << 20))),
        _ => Reply::Cut(Vec::new()),
    })
    .await;
    let sender = sender(
        AddressGuard::new().allow("127.0.0.1".parse().unwrap()),
        &[&["127.0.0.1"]],
    );
    for (path, error) in [
        ("hang", "no answer in time"),
        ("half", "did not end in time"),
        ("truncated", "cut off"),
        ("cut", "connection reset"),
    ] {
        let sent = attempt(&sender, &receiver.url(path)).await.unwrap();
        let refused = sent.outcome.unwrap_err();
        assert!(refused.error.contains(error), "{path}: {}", refused.error);
        assert!(sent.took < Duration::from_secs(2));
        assert_eq!(sent.address, receiver.address.to_string());
    }
    let large = attempt(&sender, &receiver.url("large")).await.unwrap();
    assert_eq!(
        large.outcome,
        Ok(()),
        "what was read is enough for a plain acknowledgement"
    );
    assert_eq!(large.excerpt.len(), 1024);
    // Each attempt sends one request.
    assert_eq!(receiver.hits().len(), 5);
}
