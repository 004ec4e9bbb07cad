//! Prints the rate of attempts of relent-outbox's sender, next to hyper-util's client that posts the same bytes with
//! the same signatures, over the loopback.
//!
//! Both keep 16 requests in flight on one thread; the server has another. Batches alternate, also in their order, and
//! the median of the ratios counts, since other work on the machine slows both.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{HeaderValue, Method, Request, Response, Uri};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use relent_core::Policy;
use relent_http::webhook::{Signer, SigningKey, WEBHOOK_ID, WEBHOOK_TIMESTAMP};
use relent_outbox::endpoint::{Acknowledgement, Endpoint};
use relent_outbox::guard::AddressGuard;
use relent_outbox::message::MessageId;
use relent_outbox::secrets::{Secrets, Signing};
use relent_outbox::sender::{Outgoing, Sender, SenderConfig};
use tokio::task::JoinSet;

const BATCHES: usize = 101;
const REQUESTS: usize = 640;
const AT_ONCE: usize = 16;
/// Bytes of a payload.
const PAYLOAD: usize = 1024;
const KEY: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const ID: &str = "msg_0192f0c100007000800000000000abcd";

type Sent = Pin<Box<dyn Future<Output = bool> + Send>>;
type Post = Arc<dyn Fn() -> Sent + Send + Sync>;

fn main() -> Result<(), Box<dyn Error>> {
    let address = serve()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let url = format!("http://{address}/notify");
        let payload = Bytes::from(vec![b'x'; PAYLOAD]);
        println!("# outbox_sender: attempts per second, and the share of a bare client");
        for (name, keys) in [("unsigned", 0), ("signed", 1), ("signed by two keys", 2)] {
            let (bare, own) = (bare(&url, &payload, keys)?, own(&url, &payload, keys)?);
            let (mut rates, mut ratios) = (Vec::new(), Vec::new());
            for batch in 0..BATCHES {
                let (own, bare) = match batch % 2 {
                    0 => (rate(&own).await?, rate(&bare).await?),
                    _ => {
                        let bare = rate(&bare).await?;
                        (rate(&own).await?, bare)
                    }
                };
                rates.push(own);
                ratios.push(own / bare);
            }
            println!("{name}: {:.0}/s, {:.3}", median(rates), median(ratios));
        }
        Ok(())
    })
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

async fn rate(post: &Post) -> Result<f64, Box<dyn Error>> {
    let began = Instant::now();
    let (mut posting, mut left) = (JoinSet::new(), REQUESTS);
    while left > 0 || !posting.is_empty() {
        while left > 0 && posting.len() < AT_ONCE {
            posting.spawn(post());
            left -= 1;
        }
        if posting.join_next().await.transpose()? != Some(true) {
            return Err("a request failed".into());
        }
    }
    Ok(REQUESTS as f64 / began.elapsed().as_secs_f64())
}

/// The plain implementation: the same request with the same headers and signatures, and nothing else.
fn bare(url: &str, payload: &Bytes, keys: usize) -> Result<Post, Box<dyn Error>> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let (uri, payload): (Uri, _) = (url.parse()?, payload.clone());
    let mut signer: Option<Signer> = None;
    for _ in 0..keys {
        let key: SigningKey = KEY.parse()?;
        signer = Some(match signer {
            None => Signer::new(key),
            Some(signer) => signer.also(key),
        });
    }
    let signer = Arc::new(signer);
    Ok(Arc::new(move || {
        let (client, payload, signer) = (client.clone(), payload.clone(), Arc::clone(&signer));
        let mut request = Request::new(Full::new(payload.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri.clone();
        Box::pin(async move {
            let headers = request.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            headers.insert(USER_AGENT, HeaderValue::from_static("relent/0.0.0"));
            match signer.as_ref() {
                Some(signer) => {
                    if signer
                        .sign(ID, SystemTime::now(), &payload, headers)
                        .is_err()
                    {
                        return false;
                    }
                }
                None => {
                    headers.insert(WEBHOOK_ID, HeaderValue::from_static(ID));
                    headers.insert(WEBHOOK_TIMESTAMP, HeaderValue::from(1_795_000_000));
                }
            }
            let Ok(response) = client.request(request).await else {
                return false;
            };
            response.status().is_success() && response.into_body().collect().await.is_ok()
        })
    }))
}

fn own(url: &str, payload: &Bytes, keys: usize) -> Result<Post, Box<dyn Error>> {
    let mut config = SenderConfig::default();
    config.guard = AddressGuard::new().allow("127.0.0.1".parse()?);
    config.http = true;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?;
    let roots = rustls::RootCertStore::empty();
    config.tls = Some(tls.with_root_certificates(roots).with_no_client_auth());
    let sender = Sender::new(config)?;
    let target = Arc::new(sender.target(url)?);
    let secrets = Secrets::with_key("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")?;
    let mut endpoint = Endpoint::new("shop", url);
    for _ in 0..keys {
        let encrypted = secrets.encrypt("", "shop", KEY)?;
        endpoint.secrets.push(encrypted);
    }
    let signing: Arc<Option<Signing>> = Arc::new(secrets.signing(&endpoint)?);
    let (payload, id) = (payload.clone(), ID.parse::<MessageId>()?);
    Ok(Arc::new(move || {
        let (sender, target) = (sender.clone(), Arc::clone(&target));
        let (signing, payload) = (Arc::clone(&signing), payload.clone());
        let id = id.clone();
        Box::pin(async move {
            let outgoing = Outgoing {
                target: &target,
                id: &id,
                content_type: "application/json",
                payload: &payload,
                signing: signing.as_ref().as_ref(),
                custom: None,
                policy: Policy::STANDARD,
                acknowledgement: Acknowledgement::Success,
                limit: Duration::from_secs(20),
                now: SystemTime::now(),
            };
            sender.send(outgoing).await.outcome.is_ok()
        })
    }))
}

/// A server on a separate thread that reads each request and responds with 200.
fn serve() -> Result<SocketAddr, Box<dyn Error>> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::spawn(move || {
        runtime.block_on(async move {
            let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
                return;
            };
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).ok();
                let service = service_fn(|request: Request<Incoming>| async move {
                    let _ = request.into_body().collect().await;
                    Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
                });
                let serving = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                // A client that goes away ends its connection, which is no error.
                tokio::spawn(async move { serving.await.ok() });
            }
        });
    });
    Ok(address)
}
