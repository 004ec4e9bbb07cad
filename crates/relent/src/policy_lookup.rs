//! Lookup of a policy by preset name or file path.

use std::fs::File;
use std::path::Path;

use relent_core::Policy;

use crate::policy_file::{NamedPolicy, PolicyFile, PolicyFileError, read_text};
use crate::presets;

/// The name that turns retries off.
const OFF: &str = "off";

impl NamedPolicy {
    /// The names that [`load`](Self::load) accepts without a file: all presets, and `off`.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        let mut names = presets::names();
        names.push(OFF);
        names
    }

    /// Loads a policy by name: a preset, a file with a single policy, `FILE#NAME` for
    /// `[policies.NAME]` of a file, or `off`, which is `patient` without retries. `--policy` and
    /// `RELENT_POLICY` accept the same names.
    ///
    /// Presets and `off` take precedence; to load a file of the same name write a path such as
    /// `./standard`.
    ///
    /// # Errors
    /// If there is no such preset or file (the error suggests the nearest preset), or if the file
    /// cannot be read or does not contain a valid policy of that name.
    ///
    /// ```
    /// use relent::NamedPolicy;
    ///
    /// let patient = NamedPolicy::load("patient")?;
    /// assert_eq!(patient.policy.max_retries(), Some(10));
    ///
    /// let error = NamedPolicy::load("standart").unwrap_err().to_string();
    /// assert!(error.contains("did you mean `standard`?"), "{error}");
    ///
    /// let off = NamedPolicy::load("off")?;
    /// assert_eq!(off.policy.max_retries(), Some(0));
    /// # Ok::<(), relent::policy::PolicyFileError>(())
    /// ```
    pub fn load(spec: &str) -> Result<Self, PolicyFileError> {
        if let Some(preset) = presets::get(spec) {
            return preset.load();
        }
        if spec == OFF {
            return Ok(Self::off());
        }
        let (path, name) = match spec.rsplit_once('#') {
            // The file name may itself contain a `#`.
            Some((path, name)) if !Path::new(spec).exists() => (path, Some(name)),
            _ => (spec, None),
        };
        let text = match File::open(path) {
            Ok(file) => read_text(file).map_err(|error| error.in_file(path))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(PolicyFileError::not_found(spec, path, &Self::names()));
            }
            Err(error) => return Err(PolicyFileError::io(error).in_file(path)),
        };
        PolicyFile::parse(&text)
            .and_then(|file| file.get(name).cloned())
            .map_err(|error| error.in_file(path))
    }

    fn off() -> Self {
        Self {
            name: Some(OFF.to_owned()),
            description: Some("No retries: the operator's switch".to_owned()),
            source: Some("Relent".to_owned()),
            policy: Policy::PATIENT.clone().without_retries(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "
[policies.quick]
backoff = 'none'

[policies.slow]
max_retries = 9
backoff = 'none'
";
    #[test]
    fn load_finds_presets_files_and_policies_in_files() {
        let folder =
            std::env::temp_dir().join(format!("relent-policy-file-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        std::fs::write(path("two.toml"), TWO).unwrap();
        std::fs::write(path("a#b.toml"), "backoff = 'none'").unwrap();
        std::fs::write(path("bad.toml"), "backoff = 'none'\nmax_retrys = 1").unwrap();
        std::fs::write(path("latin1.toml"), b"# \xe9").unwrap();

        let preset = NamedPolicy::load("standard").unwrap();
        assert_eq!(preset.name.as_deref(), Some("standard"));
        let slow = NamedPolicy::load(&format!("{}#slow", path("two.toml"))).unwrap();
        assert_eq!(slow.policy.max_retries(), Some(9));
        NamedPolicy::load(&path("a#b.toml")).unwrap();

        let refused = |spec: &str| NamedPolicy::load(spec).unwrap_err().to_string();
        assert!(refused(&path("two.toml")).ends_with(
            "two.toml: holds several policies: choose one as FILE#NAME, where NAME is that of \
                     [policies.NAME], of quick, slow"
        ));
        assert!(refused(&path("bad.toml")).contains("bad.toml: unknown key `max_retrys` (line 2"));
        assert!(refused(&path("latin1.toml")).contains("is not UTF-8 text (from byte 2 on)"));
        assert!(refused(folder.to_str().unwrap()).contains("cannot be read"));
        assert_eq!(
            refused("patent"),
            "no policy \"patent\": there is no preset of that name, and no file \"patent\": did you \
             mean `patient`?"
        );
        let all = format!("the presets are {}", NamedPolicy::names().join(", "));
        assert!(all.starts_with("the presets are standard, patient") && all.ends_with(", off"));
        assert!(refused("zzz").contains(&all));
        assert!(refused("zzz.toml#slow").contains("no file \"zzz.toml\""));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn an_endless_file_is_refused() {
        let error = NamedPolicy::load("/dev/zero").unwrap_err().to_string();
        assert!(error.contains("at most 1048576 bytes"), "{error}");
    }
}
