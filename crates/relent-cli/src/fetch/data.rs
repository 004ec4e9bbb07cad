//! The request body of `relent fetch`, from the data options in the order in which they were given.

use std::os::unix::fs::FileExt;
use std::path::Path;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use indicatif::HumanBytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use relent_reqwest::Body;
use sha2::{Digest, Sha256};
use tempfile::{NamedTempFile, TempPath};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::streams::StdStream;

/// The most bytes of data that are kept in memory; longer data is sent from a file.
pub(super) const MAX_DATA_MEMORY_BYTES: u64 = 1 << 20;

/// The unreserved characters of RFC 3986.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

const HEADING: &str = "Request options";

/// One piece of data.
#[derive(Clone, PartialEq, Eq)]
enum Piece {
    /// `-d`: text, or the contents of a file with `@`.
    Data(String),
    /// `--data-raw`: text.
    Raw(String),
    /// `--data-urlencode`: `content`, `=content`, `name=content`, `@file` or `name@file`.
    Encoded(String),
    /// `--json`: as `-d`, but joined without `&`.
    Json(String),
}

/// All pieces of data, in order.
#[derive(Clone, Default)]
pub(crate) struct Data(Vec<Piece>);

/// Shows only the number of pieces: the data may be a secret.
impl std::fmt::Debug for Data {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Data({} pieces)", self.0.len())
    }
}

type MakePiece = fn(String) -> Piece;

const OPTIONS: [(&str, MakePiece); 5] = [
    ("data", Piece::Data),
    ("data_binary", Piece::Data),
    ("data_raw", Piece::Raw),
    ("data_urlencode", Piece::Encoded),
    ("json", Piece::Json),
];

impl Args for Data {
    fn augment_args(command: Command) -> Command {
        let option = |id: &'static str, long: &'static str| {
            Arg::new(id)
                .long(long)
                .action(ArgAction::Append)
                .allow_hyphen_values(true)
                .help_heading(HEADING)
        };
        command
            .arg(
                option("data", "data")
                    .short('d')
                    .value_name("DATA|@FILE")
                    .help("Send this data, or the contents of FILE, or with @- of standard input")
                    .long_help(
                        "Send this data, or the contents of FILE, or with @- of standard input\n\n\
                         Several are joined with &. The Content-Type is \
                         application/x-www-form-urlencoded unless -H says another. A file is sent as \
                         it is, line ends included.",
                    ),
            )
            .arg(
                option("json", "json")
                    .value_name("DATA|@FILE")
                    .conflicts_with_all(["data", "data_raw", "data_urlencode", "data_binary"])
                    .help("Send this JSON, and accept JSON"),
            )
            .arg(
                option("data_raw", "data-raw")
                    .value_name("DATA")
                    .help("Same as -d, but without a special meaning of @"),
            )
            .arg(
                option("data_urlencode", "data-urlencode")
                    .value_name("NAME=TEXT|NAME@FILE")
                    .help("Same as -d, but TEXT, or the contents of FILE, is percent-encoded"),
            )
            .arg(
                option("data_binary", "data-binary")
                    .value_name("DATA|@FILE")
                    .help("Same as -d"),
            )
            .group(clap::ArgGroup::new("data_any").args(OPTIONS.map(|(id, _)| id)).multiple(true))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Data {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut data = Self::default();
        data.update_from_arg_matches(matches)?;
        Ok(data)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        let mut pieces = Vec::new();
        for (id, piece) in OPTIONS {
            let values = matches.get_many::<String>(id).into_iter().flatten();
            let places = matches.indices_of(id).into_iter().flatten();
            pieces.extend(
                places
                    .zip(values)
                    .map(|(at, value)| (at, piece(value.clone()))),
            );
        }
        pieces.sort_by_key(|(at, _)| *at);
        self.0 = pieces.into_iter().map(|(_, piece)| piece).collect();
        Ok(())
    }
}

impl Data {
    /// Whether no data was given.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the data is JSON.
    pub(super) fn is_json(&self) -> bool {
        self.0.iter().any(|piece| matches!(piece, Piece::Json(_)))
    }

    /// Reads all data.
    ///
    /// # Errors
    /// Data cannot be read.
    pub(super) async fn read(&self, most: u64) -> Result<RequestBody, String> {
        if let [Piece::Data(only) | Piece::Json(only)] = &self.0[..]
            && let Some(name) = only.strip_prefix('@')
            && name != "-"
            && is_large(Path::new(name))
        {
            return RequestBody::file(Path::new(name))
                .map_err(|error| unreadable("-d @", name, &error));
        }
        let mut all = BodyBuffer::new(most);
        for (index, piece) in self.0.iter().enumerate() {
            if index > 0 && !self.is_json() {
                all.add(b"&").map_err(cannot_keep)?;
            }
            piece.read(&mut all).await?;
        }
        all.finish().map_err(cannot_keep)
    }

    /// Reads all data as the query of a URL.
    ///
    /// # Errors
    /// Data cannot be read, or is not text.
    pub(super) async fn query(&self, most: u64) -> Result<String, String> {
        let mut all = BodyBuffer::new(most);
        for (index, piece) in self.0.iter().enumerate() {
            if index > 0 {
                all.add(b"&").map_err(cannot_keep)?;
            }
            piece.read(&mut all).await?;
        }
        match all.file {
            Some(_) => Err("-G: the data is too long for a URL".to_owned()),
            None => String::from_utf8(all.memory)
                .map_err(|_| "-G: the data is no text: use --data-urlencode".to_owned()),
        }
    }
}

impl Piece {
    async fn read(&self, to: &mut BodyBuffer) -> Result<(), String> {
        match self {
            Self::Raw(text) => to.add(text.as_bytes()).map_err(cannot_keep),
            Self::Data(text) | Self::Json(text) => match text.strip_prefix('@') {
                Some(name) => {
                    let option = match self {
                        Self::Json(_) => "--json @",
                        _ => "-d @",
                    };
                    to.add_file(option, name).await
                }
                None => to.add(text.as_bytes()).map_err(cannot_keep),
            },
            Self::Encoded(text) => {
                let (name, content) = match text.find(['=', '@']) {
                    Some(at) if text[at..].starts_with('=') => (&text[..at], &text[at + 1..]),
                    Some(at) => {
                        let mut file = BodyBuffer::new(to.most);
                        file.add_file("--data-urlencode @", &text[at + 1..]).await?;
                        if file.file.is_some() {
                            return Err(
                                "--data-urlencode: the file is longer than 1 MiB".to_owned()
                            );
                        }
                        let encoded = percent_encoding::percent_encode(&file.memory, ENCODED);
                        return to.add_named(&text[..at], &encoded.to_string());
                    }
                    None => ("", &text[..]),
                };
                to.add_named(name, &utf8_percent_encode(content, ENCODED).to_string())
            }
        }
    }
}

/// A body, with its temporary file.
#[derive(Debug, Default)]
pub(super) struct RequestBody {
    pub(super) body: Body,
    /// The temporary file, which is removed when this is dropped.
    pub(super) kept: Option<TempPath>,
}

impl RequestBody {
    fn file(path: &Path) -> std::io::Result<Self> {
        Ok(Self {
            body: Body::file(path)?,
            kept: None,
        })
    }
}

/// Reads the file of `-T` as a body.
///
/// # Errors
/// The file cannot be read.
pub(super) async fn upload(path: &Path, most: u64) -> Result<RequestBody, String> {
    let name = path.to_string_lossy();
    if path != Path::new("-") && is_large(path) {
        return RequestBody::file(path).map_err(|error| unreadable("-T ", &name, &error));
    }
    let mut all = BodyBuffer::new(most);
    all.add_named_file("-T ", path).await?;
    all.finish().map_err(cannot_keep)
}

/// Checks the fields of `-F`, before their data is read.
///
/// # Errors
/// A field is invalid.
pub(super) fn check_form(fields: &[String]) -> Result<(), String> {
    fields
        .iter()
        .try_for_each(|field| Field::parse(field).map(drop))
}

/// Builds multipart/form-data (RFC 7578) from the fields of `-F`, and adds its content type to `headers`.
///
/// # Errors
/// A field is invalid or cannot be read.
pub(super) async fn form(
    fields: &[String],
    headers: &mut HeaderMap,
    most: u64,
) -> Result<RequestBody, String> {
    let (all, boundary) = multipart(fields, most).await?;
    let kind = format!("{}; boundary={boundary}", form_type(headers)?);
    let kind = kind.parse().map_err(|_| "-F: no content type".to_owned())?;
    headers.insert(CONTENT_TYPE, kind);
    all.finish().map_err(cannot_keep)
}

/// The type of a form. A type of the user gets the boundary, as with curl: without it no server can read the form.
///
/// # Errors
/// It has a boundary.
pub(super) fn form_type(headers: &HeaderMap) -> Result<&str, String> {
    let given = headers.get(CONTENT_TYPE).filter(|kind| !kind.is_empty());
    let given = given.map_or(Ok("multipart/form-data"), |kind| kind.to_str());
    let given = given.map_err(|_| "-F: the Content-Type is no text".to_owned())?;
    match given.to_ascii_lowercase().contains("boundary=") {
        true => Err("-F chooses the boundary: remove it from the Content-Type".to_owned()),
        false => Ok(given),
    }
}

/// Builds the body of a form, with its boundary.
async fn multipart(fields: &[String], most: u64) -> Result<(BodyBuffer, String), String> {
    use std::fmt::Write as _;

    // The boundary is a digest of the form, so that no content contains it, and that a repeated command sends the same
    // bytes: a server compares the requests with an Idempotency-Key. Zeros keep its place until the digest is known.
    let zeros = boundary(0);
    let mut all = BodyBuffer {
        digest: Some(Sha256::new()),
        ..BodyBuffer::new(most)
    };
    let mut places = Vec::new();
    for field in fields {
        let field = Field::parse(field)?;
        places.push(all.len().map_err(cannot_keep)? + DASHES);
        let mut head = format!(
            "--{zeros}\r\nContent-Disposition: form-data; name=\"{}\"",
            escaped(field.name)
        );
        if let Some(name) = field.shown_name() {
            let _ = write!(head, "; filename=\"{}\"", escaped(&name));
        }
        let of_file =
            matches!(field.content, Content::File(_)).then_some("application/octet-stream");
        if let Some(kind) = field.kind.or(of_file) {
            let _ = write!(head, "\r\nContent-Type: {kind}");
        }
        head.push_str("\r\n\r\n");
        all.add(head.as_bytes()).map_err(cannot_keep)?;
        match field.content {
            Content::Text(text) => all.add(text.as_bytes()).map_err(cannot_keep)?,
            Content::File(name) | Content::Value(name) => all.add_file("-F @", name).await?,
        }
        all.add(b"\r\n").map_err(cannot_keep)?;
    }
    places.push(all.len().map_err(cannot_keep)? + DASHES);
    all.add(format!("--{zeros}--\r\n").as_bytes())
        .map_err(cannot_keep)?;
    let boundary = boundary(all.digest());
    for place in places {
        all.replace(place, boundary.as_bytes())
            .map_err(cannot_keep)?;
    }
    Ok((all, boundary))
}

/// The length of the dashes before a boundary.
const DASHES: u64 = 2;

fn boundary(digest: u128) -> String {
    format!("relent-{digest:032x}")
}

/// A field of a form.
struct Field<'a> {
    name: &'a str,
    content: Content<'a>,
    kind: Option<&'a str>,
    filename: Option<&'a str>,
}

enum Content<'a> {
    Text(&'a str),
    /// The file of this name, sent as a file.
    File(&'a str),
    /// The contents of the file of this name, sent as text.
    Value(&'a str),
}

impl<'a> Field<'a> {
    fn parse(text: &'a str) -> Result<Self, String> {
        let (name, mut rest) = text
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or("-F: a field is written as NAME=VALUE, NAME=@FILE or NAME=<FILE")?;
        let (mut kind, mut filename) = (None, None);
        while let Some((before, parameter)) = rest.rsplit_once(';') {
            let parameter = parameter.trim_start();
            if let Some(value) = parameter.strip_prefix("type=") {
                kind = Some(value);
            } else if let Some(value) = parameter.strip_prefix("filename=") {
                filename = Some(value.trim_matches('"'));
            } else {
                break;
            }
            rest = before;
        }
        if kind.is_some_and(|kind| kind.bytes().any(|byte| byte.is_ascii_control())) {
            return Err(format!("-F {name}=…: ;type= has control characters"));
        }
        let content = match (rest.strip_prefix('@'), rest.strip_prefix('<')) {
            (Some(file), _) => Content::File(file),
            (_, Some(file)) => Content::Value(file),
            _ => Content::Text(rest),
        };
        Ok(Self {
            name,
            content,
            kind,
            filename,
        })
    }

    /// The file name that is sent to the server.
    fn shown_name(&self) -> Option<String> {
        let own = match self.content {
            Content::File(path) => Path::new(path).file_name(),
            Content::Text(_) | Content::Value(_) => None,
        };
        let given = self.filename.map(str::to_owned);
        given.or_else(|| own.map(|name| name.to_string_lossy().into_owned()))
    }
}

/// A name between quotes, as browsers write it (WHATWG).
fn escaped(name: &str) -> String {
    name.replace('"', "%22")
        .replace('\r', "%0D")
        .replace('\n', "%0A")
}

fn is_large(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() > MAX_DATA_MEMORY_BYTES)
}

fn unreadable(option: &str, name: &str, error: &std::io::Error) -> String {
    format!("{option}{name}: cannot be read: {error}")
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn cannot_keep(error: std::io::Error) -> String {
    format!(
        "the data cannot be kept in {} (TMPDIR names another place): {error}",
        std::env::temp_dir().display()
    )
}

/// Data that is read once: in memory, or in a temporary file beyond [`MAX_DATA_MEMORY_BYTES`]. The file is removed when
/// this is dropped, and reading can be dropped at any time.
struct BodyBuffer {
    memory: Vec<u8>,
    file: Option<NamedTempFile>,
    /// The most bytes that are read of standard input, or of another source that may never end.
    most: u64,
    /// The digest of all bytes that were added, if it is wanted.
    digest: Option<Sha256>,
}

impl BodyBuffer {
    const fn new(most: u64) -> Self {
        Self {
            memory: Vec::new(),
            file: None,
            most,
            digest: None,
        }
    }

    /// The number of bytes.
    fn len(&self) -> std::io::Result<u64> {
        match &self.file {
            Some(file) => Ok(file.as_file().metadata()?.len()),
            None => Ok(self.memory.len() as u64),
        }
    }

    /// The first 128 bits of the digest of all bytes that were added.
    fn digest(&mut self) -> u128 {
        let digest: [u8; 32] = self.digest.take().unwrap_or_default().finalize().into();
        let mut first = [0; 16];
        first.copy_from_slice(&digest[..16]);
        u128::from_be_bytes(first)
    }

    /// Replaces the bytes at this place.
    fn replace(&mut self, place: u64, bytes: &[u8]) -> std::io::Result<()> {
        if let Some(file) = &self.file {
            return file.as_file().write_all_at(bytes, place);
        }
        let place = usize::try_from(place).unwrap_or(usize::MAX);
        let there = self.memory.iter_mut().skip(place);
        there.zip(bytes).for_each(|(there, byte)| *there = *byte);
        Ok(())
    }

    fn add(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        use std::io::Write as _;

        if let Some(digest) = &mut self.digest {
            digest.update(bytes);
        }
        if self.file.is_none() {
            if (self.memory.len() + bytes.len()) as u64 <= MAX_DATA_MEMORY_BYTES {
                self.memory.extend_from_slice(bytes);
                return Ok(());
            }
            let mut file = NamedTempFile::with_prefix("relent-data-")?;
            file.write_all(&self.memory)?;
            self.memory = Vec::new();
            self.file = Some(file);
        }
        match &mut self.file {
            Some(file) => file.write_all(bytes),
            None => Ok(()),
        }
    }

    fn add_named(&mut self, name: &str, content: &str) -> Result<(), String> {
        let added = if name.is_empty() {
            self.add(content.as_bytes())
        } else {
            self.add(format!("{name}={content}").as_bytes())
        };
        added.map_err(cannot_keep)
    }

    /// The contents of the file of this name, or of standard input.
    async fn add_file(&mut self, option: &str, name: &str) -> Result<(), String> {
        self.add_named_file(option, Path::new(name)).await
    }

    async fn add_named_file(&mut self, option: &str, path: &Path) -> Result<(), String> {
        let added = if path != Path::new("-") {
            self.add_contents(path).await
        } else if StdStream::Stdin.was_closed() {
            // It would read as empty, and replace what is there by nothing.
            Err(std::io::Error::other("standard input is closed"))
        } else {
            self.add_all(tokio::io::stdin(), self.most).await
        };
        added.map_err(|error| unreadable(option, &path.to_string_lossy(), &error))
    }

    async fn add_contents(&mut self, path: &Path) -> std::io::Result<()> {
        let file = tokio::fs::File::open(path).await?;
        let most = match file.metadata().await?.is_file() {
            true => u64::MAX,
            false => self.most,
        };
        self.add_all(file, most).await
    }

    async fn add_all(
        &mut self,
        mut from: impl AsyncRead + Unpin,
        most: u64,
    ) -> std::io::Result<()> {
        let (mut buffer, mut left) = (vec![0; 1 << 16], most);
        loop {
            match from.read(&mut buffer).await? {
                0 => return Ok(()),
                length => {
                    left = left.checked_sub(length as u64).ok_or_else(|| {
                        let most = HumanBytes(most);
                        std::io::Error::other(format!("it exceeds --max-buffer ({most})"))
                    })?;
                    self.add(&buffer[..length])?;
                }
            }
        }
    }

    fn finish(self) -> std::io::Result<RequestBody> {
        let Some(file) = self.file else {
            return Ok(RequestBody {
                body: Body::from(self.memory),
                kept: None,
            });
        };
        let path = file.into_temp_path();
        Ok(RequestBody {
            body: Body::file(path.to_path_buf())?,
            kept: Some(path),
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        data: Data,
    }

    async fn sent(args: &[&str]) -> String {
        let line = Line::try_parse_from(std::iter::once(&"x").chain(args));
        line.unwrap_or_else(|error| panic!("{error}"))
            .data
            .query(0)
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn data_options_are_joined_in_command_line_order() {
        let args = [
            "--data-raw",
            "@a",
            "-d",
            "b=1",
            "--data-urlencode",
            "c=x y&z",
            "--data-binary",
            "d",
            "--data-urlencode",
            "=&",
            "-d",
            "e",
            "--data-urlencode",
            "ö",
        ];
        assert_eq!(sent(&args).await, "@a&b=1&c=x%20y%26z&d&%26&e&%C3%B6");
    }

    #[tokio::test]
    async fn a_form_is_sent_as_multipart_with_names_and_types() {
        let file = tempfile::Builder::new()
            .suffix("\"q.txt")
            .tempfile()
            .unwrap();
        std::fs::write(file.path(), "contents").unwrap();
        let path = file.path().to_str().unwrap();
        let fields = [
            "a=1;2".to_owned(),
            "b=x; type=text/plain".to_owned(),
            format!("c=@{path};filename=other;type=image/png"),
            format!("d=<{path}"),
        ];
        let mut headers = HeaderMap::new();
        let sent = form(&fields, &mut headers, 0).await.unwrap();
        let kind = headers["content-type"].to_str().unwrap();
        let boundary = kind.strip_prefix("multipart/form-data; boundary=").unwrap();
        let wanted = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1;2\r\n\
             --{boundary}\r\nContent-Disposition: form-data; name=\"b\"\r\nContent-Type: text/plain\r\n\r\nx\r\n\
             --{boundary}\r\nContent-Disposition: form-data; name=\"c\"; filename=\"other\"\r\nContent-Type: image/png\r\n\r\ncontents\r\n\
             --{boundary}\r\nContent-Disposition: form-data; name=\"d\"\r\n\r\ncontents\r\n\
             --{boundary}--\r\n"
        );
        assert_eq!(sent.body.len(), Some(wanted.len() as u64));
        for wrong in ["a", "=x", ""] {
            assert!(check_form(&["a=1".to_owned(), wrong.to_owned()]).is_err());
        }
        assert!(Field::parse("c=@/x/a\"b").unwrap().shown_name().is_some());
        assert_eq!(escaped("a\"b\r\n"), "a%22b%0D%0A");
    }

    /// Otherwise a server would reject the repeated request: the same key, and another body.
    #[tokio::test]
    async fn a_repeated_form_has_the_same_bytes_and_another_form_another_boundary() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        // In memory, and in a temporary file.
        for length in [3, MAX_DATA_MEMORY_BYTES as usize + 1] {
            std::fs::write(file.path(), vec![b'x'; length]).unwrap();
            let sent = async |fields: &[String]| {
                let (body, boundary) = multipart(fields, 0).await.unwrap();
                let kept = body.file.as_ref();
                assert_eq!(kept.is_some(), length > 3);
                let bytes = kept.map_or(body.memory, |file| std::fs::read(file).unwrap());
                let text = String::from_utf8(bytes).unwrap();
                let delimiter = format!("--{boundary}");
                assert_eq!(text.matches(&delimiter).count(), fields.len() + 1);
                assert!(
                    text.starts_with(&delimiter) && text.ends_with(&format!("{delimiter}--\r\n"))
                );
                (boundary, text)
            };
            let fields = ["a=1".to_owned(), format!("b=@{path}")];
            let first = sent(&fields).await;
            assert!(first == sent(&fields).await);
            let other = sent(&["a=2".to_owned(), format!("b=@{path}")]).await;
            assert_ne!(first.0, other.0);
        }
    }

    #[tokio::test]
    async fn data_beyond_the_memory_limit_is_kept_in_a_file() {
        for (length, in_file) in [
            (0, false),
            (MAX_DATA_MEMORY_BYTES, false),
            (MAX_DATA_MEMORY_BYTES + 1, true),
            (3 * MAX_DATA_MEMORY_BYTES, true),
        ] {
            let mut kept = BodyBuffer::new(0);
            let endless = tokio::io::repeat(7);
            kept.add_all(endless.take(length), length).await.unwrap();
            let data = kept.finish().unwrap();
            assert_eq!(
                (data.body.len(), data.kept.is_some()),
                (Some(length), in_file)
            );
        }
        let mut kept = BodyBuffer::new(0);
        let endless = kept
            .add_all(tokio::io::repeat(7), MAX_DATA_MEMORY_BYTES)
            .await;
        let error = endless.unwrap_err().to_string();
        assert_eq!(error, "it exceeds --max-buffer (1.00 MiB)");
    }
}
