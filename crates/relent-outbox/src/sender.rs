//! HTTP client for single attempts at an endpoint.

use std::error::Error;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{Extensions, HeaderMap, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{CaptureConnection, HttpInfo, capture_connection};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use relent_core::{Cause, Failure, FailureKind, Network, Policy};
use relent_http::attempt::{Complete, Proof};
use relent_http::network::{chain, classify_error};
use relent_http::webhook::WEBHOOK_SIGNATURE;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls_platform_verifier::Verifier;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::acknowledgement::{
    BodyEnd, MAX_BODY, NotAcknowledged, ReceiverResponse, disables, excerpt, holds, judge,
};
use crate::endpoint::Acknowledgement;
use crate::fault::{FaultKind, LocalFault};
use crate::guard::AddressGuard;
use crate::headers::{CustomHeaders, visible};
use crate::message::MessageId;
use crate::resolver::{GuardedConnector, NoConnection, Resolve, SystemResolver};
use crate::secrets::Signing;
use crate::target::Target;

/// Settings of a [`Sender`].
#[derive(Clone)]
#[non_exhaustive]
pub struct SenderConfig {
    /// The addresses that may be called; public ones by default.
    pub guard: AddressGuard,
    /// Whether URLs without TLS are called; `false` by default.
    pub http: bool,
    /// The time limit for name resolution and connection; 5 s by default.
    pub connect_timeout: Duration,
    /// The time limit of an attempt whose policy sets no `attempt_timeout`; 20 s by default.
    pub attempt_timeout: Duration,
    /// The time after which a connection gets no more attempts; 5 min by default. Its address was resolved and checked
    /// when it was opened.
    pub connection_age: Duration,
    /// The name resolver; the system's by default.
    pub resolver: Arc<dyn Resolve>,
    /// Additional trusted CA certificates, such as those of a private CA; none by default. [`certificates`] reads them
    /// from a file.
    pub authorities: Vec<CertificateDer<'static>>,
    /// A complete TLS configuration, in place of the system's certificates and `authorities`; `None` by default.
    pub tls: Option<rustls::ClientConfig>,
}

impl Default for SenderConfig {
    fn default() -> Self {
        Self {
            guard: AddressGuard::new(),
            http: false,
            connect_timeout: Duration::from_secs(5),
            attempt_timeout: Duration::from_secs(20),
            connection_age: Duration::from_secs(300),
            resolver: Arc::new(SystemResolver),
            authorities: Vec::new(),
            tls: None,
        }
    }
}

impl fmt::Debug for SenderConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SenderConfig")
            .field("guard", &self.guard)
            .field("http", &self.http)
            .field("connect_timeout", &self.connect_timeout)
            .field("attempt_timeout", &self.attempt_timeout)
            .field("connection_age", &self.connection_age)
            .finish_non_exhaustive()
    }
}

type Connections = Client<HttpsConnector<GuardedConnector>, Full<Bytes>>;

/// Sends attempts over HTTP/1.1 or HTTP/2. It sends each request once, follows no redirects, and uses no proxy.
///
/// A connection is reused by later attempts. Its address was checked when it was opened; a later change of the DNS name
/// has no effect until it is closed after [`connection_age`](SenderConfig::connection_age).
///
/// Clones share the connections.
#[derive(Clone)]
pub struct Sender {
    shared: Arc<Shared>,
}

struct Shared {
    config: SenderConfig,
    guarded: GuardedConnector,
    connector: HttpsConnector<GuardedConnector>,
    /// The current connection pool, and the time of its creation.
    connections: Mutex<(Instant, Connections)>,
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sender").field(&self.shared.config).finish()
    }
}

/// Reads the certificates in a PEM file, for [`SenderConfig::authorities`]. The file must contain at least one.
///
/// # Errors
/// A description of the problem with the file.
pub fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(file).map_err(|error| error.to_string())?;
    let read: Result<Vec<_>, _> = read.collect();
    let read = read.map_err(|error| error.to_string())?;
    let mut roots = RootCertStore::empty();
    for certificate in &read {
        roots
            .add(certificate.clone())
            .map_err(|error| error.to_string())?;
    }
    match roots.is_empty() {
        true => Err("it has no certificate in PEM".to_owned()),
        false => Ok(read),
    }
}

/// The error if TLS cannot be configured.
#[derive(Debug)]
pub struct NoTls(rustls::Error);

impl fmt::Display for NoTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(error) = self;
        write!(
            f,
            "the certificates of the system, or the authorities beside them, cannot be used: {error}; give the sender a \
             configuration of TLS"
        )
    }
}

impl Error for NoTls {}

/// A message to send in one attempt.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The URL it is sent to.
    pub target: &'a Target,
    /// The identifier, the same in each attempt.
    pub id: &'a MessageId,
    /// The media type of the payload.
    pub content_type: &'a str,
    /// The body, sent unchanged.
    pub payload: &'a Bytes,
    /// The signing keys; `None` to send it unsigned.
    pub signing: Option<&'a Signing>,
    /// The additional header fields of the endpoint.
    pub custom: Option<&'a CustomHeaders>,
    /// The policy, whose lists classify failures.
    pub policy: &'a Policy,
    /// The response that acknowledges it.
    pub acknowledgement: Acknowledgement,
    /// The time limit of the attempt.
    pub limit: Duration,
    /// The time of the attempt, which is signed.
    pub now: SystemTime,
}

/// The result of an attempt.
#[derive(Clone, PartialEq, Debug)]
pub struct AttemptResult {
    /// `Ok` if it was acknowledged; otherwise the failure.
    pub outcome: Result<(), NotAcknowledged>,
    /// The status of the response.
    pub status: Option<u16>,
    /// The beginning of the response body: see [`excerpt`].
    pub excerpt: String,
    /// The address of the connection; empty if there was none.
    pub address: String,
    /// The duration.
    pub took: Duration,
    /// The attempt failed by a local fault, which is no evidence about the endpoint.
    pub fault: Option<FaultKind>,
    /// The reason that the response disables the endpoint: see [`disables`].
    pub disable: Option<&'static str>,
    /// The response asks to hold the message until the endpoint is enabled.
    pub hold: bool,
    /// The request's header fields in their visible form: see [`visible`].
    pub request: String,
    /// The response's header fields in their visible form; empty if there was no response.
    pub response: String,
}

impl AttemptResult {
    /// An attempt that could not be made, or failed locally.
    pub(crate) fn failed(failure: Failure, error: String, took: Duration) -> Self {
        Self {
            outcome: Err(NotAcknowledged {
                failure,
                error,
                gone: false,
            }),
            status: None,
            excerpt: String::new(),
            address: String::new(),
            took,
            fault: None,
            disable: None,
            hold: false,
            request: String::new(),
            response: String::new(),
        }
    }

    /// An attempt that could not be made because of a local fault.
    #[must_use]
    pub fn local_fault(fault: &LocalFault) -> Self {
        let error = fault.error.clone();
        let mut sent = Self::failed(Failure::not_processed(), error, Duration::ZERO);
        sent.fault = Some(fault.kind);
        sent
    }
}

/// The errors of an attempt that timed out: without a connection, and without a response.
pub(crate) const NO_CONNECTION: &str = "no connection in time";
pub(crate) const NO_ANSWER: &str = "no answer in time";

const AGENT: &str = concat!("relent/", env!("CARGO_PKG_VERSION"));

impl Sender {
    /// Creates a sender with these settings.
    ///
    /// # Errors
    /// [`NoTls`] if the system's certificates cannot be used.
    pub fn new(config: SenderConfig) -> Result<Self, NoTls> {
        let guarded = GuardedConnector {
            guard: Arc::new(config.guard.clone()),
            resolver: Arc::clone(&config.resolver),
            timeout: config.connect_timeout,
            resolved: Arc::default(),
        };
        let builder = HttpsConnectorBuilder::new();
        let builder = match config.tls.clone() {
            Some(tls) => builder.with_tls_config(tls),
            None => {
                let tls = tls(&config.authorities).map_err(NoTls)?;
                builder.with_tls_config(tls)
            }
        };
        let connector = builder
            .https_or_http()
            .enable_all_versions()
            .wrap_connector(guarded.clone());
        let connections = Mutex::new((Instant::now(), connections(&connector)));
        Ok(Self {
            shared: Arc::new(Shared {
                config,
                guarded,
                connector,
                connections,
            }),
        })
    }

    /// Parses the URL of an endpoint with the rules of this sender: see [`Target::parse`].
    ///
    /// # Errors
    /// [`InvalidTarget`](crate::target::InvalidTarget) states the violated rule.
    pub fn target(&self, url: &str) -> Result<Target, crate::target::InvalidTarget> {
        let SenderConfig { http, guard, .. } = &self.shared.config;
        Target::parse(url, *http, guard)
    }

    /// Makes one attempt, which is cancelled when the future is dropped. It ends within its limit. If it had no connection
    /// by then, it first tests the resolver, for up to 8 s more.
    pub async fn send(&self, outgoing: Outgoing<'_>) -> AttemptResult {
        let headers = match outgoing.headers() {
            Ok(headers) => headers,
            Err(unsendable) => return *unsendable,
        };
        let Outgoing {
            target,
            payload,
            limit,
            ..
        } = outgoing;
        let exchange = self.exchange(target, headers.clone(), payload.clone(), limit);
        exchange.await.judge(&outgoing, &headers)
    }

    /// The time limit of an attempt whose policy sets none.
    pub(crate) fn attempt_timeout(&self) -> Duration {
        self.shared.config.attempt_timeout
    }

    /// Whether this machine can connect to any of these targets, unless the targets themselves prevent it. Without
    /// targets it can.
    pub(crate) async fn is_able(&self, targets: Vec<Target>) -> bool {
        if targets.is_empty() {
            return true;
        }
        let mut tests = JoinSet::new();
        for target in targets {
            let connector = self.shared.guarded.clone();
            tests.spawn(async move {
                let connected = connector.connect(target.uri()).await;
                connected.is_err_and(|failed| failed.fault.is_some())
            });
        }
        while let Some(tested) = tests.join_next().await {
            if tested.is_ok_and(|is_faulty| !is_faulty) {
                return true;
            }
        }
        false
    }

    /// Sends one signed request, and reads its response up to [`MAX_BODY`]. [`send`](Self::send) also signs and judges;
    /// this is the part of it that a [relay](crate::relay) makes elsewhere.
    pub async fn exchange(
        &self,
        target: &Target,
        headers: HeaderMap,
        payload: Bytes,
        limit: Duration,
    ) -> Exchange {
        let began = Instant::now();
        let until = began.checked_add(limit);
        let mut request = Request::new(Full::new(payload));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = target.uri().clone();
        *request.headers_mut() = headers;
        let captured = capture_connection(&mut request);
        let (result, address) =
            exchange(self.shared.connections(), request, until, &captured).await;
        let (mut result, mut fault) = match result {
            Ok(received) => (Ok(received), None),
            Err(NoConnection {
                failure,
                error,
                fault,
            }) => (Err((failure, error)), fault),
        };
        let took = began.elapsed();
        if let Err((_, error)) = &mut result
            && error == NO_CONNECTION
            && !self.shared.can_resolve(target).await
        {
            // The attempt timed out before name resolution did.
            error.push_str("; no name can be looked up: check the resolver of this machine");
            fault = Some(FaultKind::Resolver);
        }
        Exchange {
            result,
            address,
            took,
            fault,
        }
    }
}

/// The result of one request.
#[derive(Debug)]
pub struct Exchange {
    /// The response, or the failure and its description.
    pub result: Result<Received, (Failure, String)>,
    /// The address of the connection; empty if there was none.
    pub address: String,
    /// The duration.
    pub took: Duration,
    /// The local fault that prevented a response.
    pub fault: Option<FaultKind>,
}

/// A response as it was read.
#[derive(Debug)]
pub struct Received {
    /// The status.
    pub status: StatusCode,
    /// The header fields.
    pub headers: HeaderMap,
    /// The body, up to [`MAX_BODY`].
    pub body: Bytes,
    /// How far the body was read.
    pub end: BodyEnd,
}

impl Exchange {
    /// Evaluates the exchange for the message that was sent with these header fields.
    pub(crate) fn judge(self, outgoing: &Outgoing<'_>, request: &HeaderMap) -> AttemptResult {
        let secrets = outgoing.secrets(request);
        let Received {
            status,
            headers,
            body,
            end,
        } = match self.result {
            Ok(received) => received,
            Err((failure, error)) => {
                let mut sent = AttemptResult::failed(failure, error, self.took);
                sent.address = self.address;
                sent.fault = self.fault;
                sent.request = outgoing.visible(request, &secrets);
                return sent;
            }
        };
        let answer = ReceiverResponse {
            status,
            headers: &headers,
            body: &body,
            end,
        };
        AttemptResult {
            outcome: judge(
                answer,
                outgoing.acknowledgement,
                outgoing.policy,
                outgoing.now,
            ),
            status: Some(status.as_u16()),
            excerpt: excerpt(&body, &secrets),
            address: self.address,
            took: self.took,
            fault: None,
            disable: disables(status, &headers),
            hold: holds(&headers),
            request: outgoing.visible(request, &secrets),
            response: outgoing.visible(&headers, &secrets),
        }
    }
}

/// Creates a TLS configuration that trusts the system's certificates and these.
fn tls(authorities: &[CertificateDer<'static>]) -> Result<rustls::ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let roots = authorities.iter().cloned();
    let verifier = Verifier::new_with_extra_roots(roots, Arc::clone(&provider))?;
    let builder = rustls::ClientConfig::builder_with_provider(provider);
    Ok(builder
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth())
}

impl Shared {
    /// Whether the target is an IP address, or name resolution works for its name or at least for another.
    async fn can_resolve(&self, target: &Target) -> bool {
        let host = target.uri().host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let guarded = &self.guarded;
        host.parse::<IpAddr>().is_ok()
            || guarded.responds_for(host).await
            || guarded.responds_for_others(host).await
    }

    /// Returns the current connections. Older ones close when their attempts end.
    fn connections(&self) -> Connections {
        let mut kept = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if kept.0.elapsed() >= self.config.connection_age {
            *kept = (Instant::now(), connections(&self.connector));
        }
        kept.1.clone()
    }
}

fn connections(connector: &HttpsConnector<GuardedConnector>) -> Connections {
    Client::builder(TokioExecutor::new())
        .http1_allow_obsolete_multiline_headers_in_responses(true)
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(Duration::from_secs(30))
        .pool_max_idle_per_host(16)
        // A timed-out attempt does not close a connection of HTTP/2; these pings close a dead one.
        .http2_keep_alive_interval(Duration::from_secs(10))
        .http2_keep_alive_timeout(Duration::from_secs(10))
        .build(connector.clone())
}

impl Outgoing<'_> {
    /// The header fields of its request, signed.
    ///
    /// # Errors
    /// The result of the attempt, if no request can be built.
    pub(crate) fn headers(&self) -> Result<HeaderMap, Box<AttemptResult>> {
        let failure = Failure::network(Network::BadRequest);
        self.signed()
            .map_err(|error| Box::new(AttemptResult::failed(failure, error, Duration::ZERO)))
    }

    /// Texts to redact if a response echoes them: signing keys, the endpoint's additional fields, and the signatures of
    /// this request.
    pub(crate) fn secrets<'s>(&'s self, request: &'s HeaderMap) -> Vec<&'s str> {
        let signing = self.signing.map_or(&[][..], |signing| &signing.texts);
        let custom = self.custom.map_or(&[][..], |custom| &custom.texts);
        let texts = custom.iter().chain(signing).map(|text| text.as_str());
        let signatures = request.get_all(WEBHOOK_SIGNATURE).iter();
        let signatures = signatures.filter_map(|value| value.to_str().ok());
        texts
            .chain(signatures.flat_map(|value| value.split(' ')))
            .flat_map(|text| [text, text.strip_prefix("v1,").unwrap_or_default()])
            .collect()
    }

    /// The visible form of the header fields of a request or response.
    fn visible(&self, fields: &HeaderMap, secrets: &[&str]) -> String {
        let none = HeaderMap::new();
        let hidden = self.custom.map_or(&none, CustomHeaders::fields);
        visible(fields, hidden, secrets)
    }

    fn signed(&self) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::with_capacity(6);
        let content_type = HeaderValue::from_str(self.content_type)
            .map_err(|_| "the content type cannot be sent in a header".to_owned())?;
        headers.insert(CONTENT_TYPE, content_type);
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        if let Some(custom) = self.custom {
            // Each has one value, and none is set below.
            headers.extend(custom.fields().clone());
        }
        let id = self.id.as_str();
        match self.signing {
            Some(signing) => signing
                .signer
                .sign(id, self.now, self.payload, &mut headers)
                .map_err(|error| error.to_string())?,
            None => unsigned(id, self.now, &mut headers)?,
        }
        Ok(headers)
    }
}

/// Adds the identifier without a signature: receivers also use it to drop duplicates of unsigned messages.
fn unsigned(id: &str, now: SystemTime, headers: &mut HeaderMap) -> Result<(), String> {
    use relent_http::webhook::{WEBHOOK_ID, WEBHOOK_TIMESTAMP};
    let id = HeaderValue::from_str(id)
        .map_err(|_| "the identifier cannot be sent in a header".to_owned())?;
    let since = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    headers.insert(WEBHOOK_ID, id);
    headers.insert(WEBHOOK_TIMESTAMP, HeaderValue::from(since.as_secs()));
    Ok(())
}

async fn exchange(
    connections: Connections,
    request: Request<Full<Bytes>>,
    until: Option<Instant>,
    captured: &CaptureConnection,
) -> (Result<Received, NoConnection>, String) {
    let mut over = pin!(async move {
        match until {
            Some(until) => tokio::time::sleep_until(until).await,
            None => std::future::pending().await,
        }
    });
    let answered = before(over.as_mut(), connections.request(request)).await;
    let address = match &answered {
        Some(Ok(response)) => address(response.extensions()),
        _ => captured_address(captured),
    };
    let response = match answered {
        Some(Ok(response)) => response,
        Some(Err(error)) => {
            return (Err(classify_connection_error(&error)), address);
        }
        None => {
            // Nothing is sent before there is a connection.
            let (failure, error) = match address.is_empty() {
                true => (Failure::not_processed(), NO_CONNECTION),
                false => (Failure::ambiguous(), NO_ANSWER),
            };
            let failed = NoConnection {
                failure: failure.cause(Cause::Timeout),
                error: error.to_owned(),
                fault: None,
            };
            return (Err(failed), address);
        }
    };
    let (head, body) = response.into_parts();
    let proof = Proof::needed(
        Some(&Method::POST),
        head.status,
        head.version,
        &head.headers,
        || true,
    );
    let mut read = BytesMut::new();
    let reading = read_body(body, proof, &mut read);
    let end = before(over, reading).await.unwrap_or(BodyEnd::TimedOut);
    let received = Received {
        status: head.status,
        headers: head.headers,
        body: read.freeze(),
        end,
    };
    (Ok(received), address)
}

/// Returns the future's output, or `None` if `over` completes first.
async fn before<T>(
    over: Pin<&mut impl Future<Output = ()>>,
    future: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        // A response that is ready counts, even if it is polled late.
        biased;
        done = future => Some(done),
        () = over => None,
    }
}

/// Reads a body to its end, or to [`MAX_BODY`].
async fn read_body(body: Incoming, proof: Option<Proof>, read: &mut BytesMut) -> BodyEnd {
    let mut body = match proof {
        Some(proof) => Either::Left(Complete::new(body, proof)),
        None => Either::Right(body),
    };
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return BodyEnd::Cut;
        };
        let Ok(data) = frame.into_data() else {
            continue;
        };
        let room = MAX_BODY - read.len();
        if data.len() > room {
            read.extend_from_slice(&data[..room]);
            return BodyEnd::TooLong;
        }
        read.extend_from_slice(&data);
    }
    BodyEnd::Whole
}

fn address(extras: &Extensions) -> String {
    let info: Option<&HttpInfo> = extras.get();
    info.map(|info| info.remote_addr().to_string())
        .unwrap_or_default()
}

/// The address of a connection that gave no response.
fn captured_address(captured: &CaptureConnection) -> String {
    let mut extras = Extensions::new();
    if let Some(connected) = &*captured.connection_metadata() {
        connected.get_extras(&mut extras);
    }
    address(&extras)
}

/// Classifies the error of a request without a response.
fn classify_connection_error(error: &(dyn Error + 'static)) -> NoConnection {
    if let Some(NoConnection {
        failure,
        error,
        fault,
    }) = chain(error).find_map(|source| source.downcast_ref())
    {
        return NoConnection {
            failure: *failure,
            error: error.clone(),
            fault: *fault,
        };
    }
    let mut failure = classify_error(error);
    let fault = chain(error).find_map(|source| {
        if let Some(rustls::Error::FailedToGetRandomBytes) = source.downcast_ref() {
            return Some(FaultKind::Resources);
        }
        FaultKind::of_io(source.downcast_ref()?)
    });
    // If the receiver may have got the request, the failure is evidence about the receiver.
    let fault = fault.filter(|_| failure.kind == FailureKind::NotProcessed);
    let root = chain(error).last().map(ToString::to_string);
    let error = match failure.cause {
        Cause::Network(Network::Certificate) => {
            // Nothing was sent, and the owner of the certificate can renew it until the schedule ends.
            failure = Failure::network(Network::Handshake);
            let reason = chain(error).find_map(|source| source.downcast_ref());
            reason.map_or_else(
                || "the endpoint's certificate is not trusted".to_owned(),
                untrusted,
            )
        }
        Cause::Network(Network::Handshake) => {
            format!("the TLS handshake failed: {}", root.unwrap_or_default())
        }
        cause => match root {
            Some(root) => format!("{cause}: {root}"),
            None => cause.to_string(),
        },
    };
    NoConnection {
        failure,
        error,
        fault,
    }
}

/// Describes why this side rejected a certificate, or that the other side requires one.
fn untrusted(error: &rustls::Error) -> String {
    let rustls::Error::InvalidCertificate(reason) = error else {
        return format!("the TLS handshake failed: {error}");
    };
    use rustls::CertificateError::{
        Expired, ExpiredContext, NotValidForName, NotValidForNameContext, NotValidYet,
        NotValidYetContext, Revoked, UnknownIssuer,
    };
    let reason = match reason {
        Expired | ExpiredContext { .. } => "it has expired".to_owned(),
        NotValidYet | NotValidYetContext { .. } => "it is not valid yet".to_owned(),
        NotValidForName | NotValidForNameContext { .. } => "it is for another name".to_owned(),
        Revoked => "it is revoked".to_owned(),
        UnknownIssuer => "no authority that is trusted here has signed it".to_owned(),
        other => other.to_string(),
    };
    format!("the endpoint's certificate is not trusted: {reason}; nothing was sent")
}
