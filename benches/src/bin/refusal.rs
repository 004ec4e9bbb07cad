//! `refusal SUBJECT N` sends N requests over one connection in memory to a hyper server that turns them away, to be counted
//! by callgrind (`scripts/bench refusal`); `refusal` alone lists the subjects.
//!
//! `bare` answers 503 and nothing else, `same` with the fields and the body of a refusal. `relent` is the overload layer over a
//! service without a free slot, `served` the layer over `same` with a slot for each. In `same-told` and `told` the requests have the
//! three fields by which a client tells of itself, and the layer says that they are not to be repeated.

use std::convert::Infallible;
use std::process::ExitCode;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use relent_core::slots::{ConcurrencyConfig, SlotsConfig};
use relent_server::overload::OverloadLayer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::{Layer, Service, ServiceExt, service_fn};

const SUBJECTS: [&str; 6] = ["bare", "same", "relent", "served", "same-told", "told"];
const PLAIN: &[u8] = b"GET /price HTTP/1.1\r\nhost: shop.example\r\naccept: */*\r\n\r\n";
const TOLD: &[u8] =
    b"GET /price HTTP/1.1\r\nhost: shop.example\r\naccept: */*\r\nrelent-attempt: 2\r\n\
    relent-deadline-ms: 1500\r\nrelent-histogram: 10, 50\r\n\r\n";

type Failed = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [subject, n] = arguments.as_slice() else {
        for subject in SUBJECTS {
            println!("{subject}");
        }
        return ExitCode::SUCCESS;
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    let ran = n.parse().map_err(Failed::from).and_then(|n| {
        let runtime = runtime?;
        runtime.block_on(run(subject, n))
    });
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("refusal SUBJECT N; no arguments list subjects: {error}");
            ExitCode::from(2)
        }
    }
}

async fn run(subject: &str, n: u32) -> Result<(), Failed> {
    let busy = SlotsConfig {
        concurrency: ConcurrencyConfig::fixed(1),
        queue: 0,
        ..SlotsConfig::DEFAULT
    };
    let overload = OverloadLayer::new(&busy)?;
    // The first holds the only slot for as long as its body is there. The second gives the fields and the text.
    let service = overload.layer(service_fn(answer::<()>));
    let held = service.clone().oneshot(Request::new(())).await?;
    let (head, body) = service.oneshot(Request::new(())).await?.into_parts();
    let text = body.collect().await?.to_bytes();
    let refusing = overload.layer(service_fn(answer::<Incoming>));
    let same = service_fn(move |_: Request<Incoming>| {
        let mut response = Response::new(Full::new(text.clone()));
        *response.status_mut() = head.status;
        *response.headers_mut() = head.headers.clone();
        async { Ok::<_, Infallible>(response) }
    });
    match subject {
        "bare" => {
            let bare = service_fn(|_: Request<Incoming>| async {
                let mut response = Response::new(Full::<Bytes>::default());
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                Ok::<_, Infallible>(response)
            });
            converse(bare, PLAIN, n).await?;
        }
        "same" => converse(same, PLAIN, n).await?,
        "same-told" => converse(same, TOLD, n).await?,
        "relent" => converse(refusing, PLAIN, n).await?,
        "told" => converse(refusing, TOLD, n).await?,
        "served" => converse(OverloadLayer::default().layer(same), PLAIN, n).await?,
        other => return Err(format!("there is no subject {other:?}").into()),
    }
    drop(held);
    Ok(())
}

async fn answer<B>(_: Request<B>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("an answer")))
}

/// Sends the request so often, each when the answer before has come.
async fn converse<S, B>(service: S, request: &[u8], n: u32) -> Result<(), Failed>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
    B: hyper::body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let (mut client, server) = tokio::io::duplex(16 << 10);
    let service = TowerToHyperService::new(service);
    let connection = http1::Builder::new().serve_connection(TokioIo::new(server), service);
    let connection = tokio::spawn(connection);
    let mut read = vec![0; 16 << 10];
    for _ in 0..n {
        client.write_all(request).await?;
        // In memory an answer comes whole.
        let length = client.read(&mut read).await?;
        if !read[..length].starts_with(b"HTTP/1.1 503") {
            return Err(String::from_utf8_lossy(&read[..length]).into());
        }
    }
    drop(client);
    drop(connection.await);
    Ok(())
}
