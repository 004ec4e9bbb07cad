//! `-w`: data about a fetch, for scripts.

use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::HeaderValue;
use reqwest::Url;

/// A text with variables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Format(Vec<Piece>);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Piece {
    Text(String),
    Variable(Variable),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Variable {
    Status,
    Retries,
    Size,
    Time,
    Url,
    Type,
    Exit,
}

/// The data of the last attempt, and of the whole fetch.
#[derive(Clone, Debug, Default)]
pub(crate) struct FetchData {
    /// The status; 0 without a response.
    pub(crate) status: u16,
    pub(crate) content_type: String,
    /// The URL that responded.
    pub(crate) url: String,
    /// The number of body bytes in the last response.
    pub(crate) size: u64,
    pub(crate) retries: u32,
    pub(crate) elapsed: Duration,
    pub(crate) exit: i32,
}

/// The data while it is collected by the download and by the output, which gets the head of every response.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedFetchData(Arc<Mutex<FetchData>>);

impl SharedFetchData {
    pub(crate) fn lock(&self) -> MutexGuard<'_, FetchData> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FetchData {
    /// An attempt starts at this URL.
    pub(crate) fn on_request(&mut self, url: &Url) {
        self.status = 0;
        self.content_type.clear();
        self.url = url.to_string();
    }

    /// A response has arrived.
    pub(crate) fn on_response(&mut self, status: u16, url: &Url, kind: Option<&HeaderValue>) {
        self.status = status;
        self.url = url.to_string();
        self.content_type = kind.map_or_else(String::new, |kind| {
            String::from_utf8_lossy(kind.as_bytes()).into_owned()
        });
    }
}

/// Parses a format.
///
/// # Errors
/// A variable is unknown, and the message lists the known ones; or the format is one that only curl reads.
pub(crate) fn parse(text: &str) -> Result<Format, String> {
    if text.starts_with('@') {
        return Err(
            "relent reads no format from a file: write it on the command line, as in \
                    -w \"$(cat FILE)\""
                .to_owned(),
        );
    }
    for unknown in ["%header{", "%output{"] {
        if text.contains(unknown) {
            return Err(format!(
                "there is no {unknown}…}}: use -i for the header fields, and -o FILE"
            ));
        }
    }
    let mut pieces = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['%', '\\']) {
        plain.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("%{") {
            let (name, after) = after
                .split_once('}')
                .ok_or("} is missing after %{".to_owned())?;
            pieces.push(Piece::Text(std::mem::take(&mut plain)));
            pieces.push(Piece::Variable(place(name)?));
            rest = after;
            continue;
        }
        let (known, length) = match rest.as_bytes() {
            [b'%', b'%', ..] => ("%", 2),
            [b'\\', b'n', ..] => ("\n", 2),
            [b'\\', b'r', ..] => ("\r", 2),
            [b'\\', b't', ..] => ("\t", 2),
            [b'\\', b'\\', ..] => ("\\", 2),
            _ => (&rest[..1], 1),
        };
        plain.push_str(known);
        rest = &rest[length..];
    }
    plain.push_str(rest);
    pieces.push(Piece::Text(plain));
    Ok(Format(pieces))
}

fn place(name: &str) -> Result<Variable, String> {
    Ok(match name {
        "http_code" | "response_code" => Variable::Status,
        "num_retries" => Variable::Retries,
        "size_download" => Variable::Size,
        "time_total" => Variable::Time,
        "url_effective" => Variable::Url,
        "content_type" => Variable::Type,
        "exitcode" => Variable::Exit,
        _ => {
            return Err(format!(
                "there is no %{{{name}}}: use http_code, response_code, num_retries, size_download, \
                 time_total, url_effective, content_type or exitcode"
            ));
        }
    })
}

impl Format {
    /// Fills in the variables.
    pub(crate) fn fill(&self, seen: &FetchData) -> String {
        let mut text = String::new();
        for piece in &self.0 {
            // Writing to a string does not fail.
            let _ = match piece {
                Piece::Text(plain) => text.write_str(plain),
                Piece::Variable(Variable::Status) => write!(text, "{:03}", seen.status),
                Piece::Variable(Variable::Retries) => write!(text, "{}", seen.retries),
                Piece::Variable(Variable::Size) => write!(text, "{}", seen.size),
                Piece::Variable(Variable::Time) => {
                    write!(text, "{:.6}", seen.elapsed.as_secs_f64())
                }
                Piece::Variable(Variable::Url) => text.write_str(&seen.url),
                Piece::Variable(Variable::Type) => text.write_str(&seen.content_type),
                Piece::Variable(Variable::Exit) => write!(text, "{}", seen.exit),
            };
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_filled_and_escapes_are_read() {
        let seen = FetchData {
            status: 200,
            retries: 2,
            ..FetchData::default()
        };
        let filled = |text| parse(text).unwrap().fill(&seen);
        assert_eq!(filled("%{http_code} %{num_retries}\\n"), "200 2\n");
        assert_eq!(filled("100%% %x \\q \\\\ %"), "100% %x \\q \\ %");
        assert_eq!(filled(""), "");
        assert!(parse("%{http_codes}").unwrap_err().contains("http_code,"));
        assert!(parse("%{x").is_err());
        // curl reads a file, a header field or another output here: they must not be printed as they are.
        for curls in ["@format", "@-", "%header{etag}", "%output{file}"] {
            assert!(parse(curls).is_err(), "{curls}");
        }
    }
}
