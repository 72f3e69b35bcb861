//! TLS: what `sslmode` and its companions mean, as libpq has it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::pem::{Error as PemError, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    ClientConfig, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
};

/// Whether connections are encrypted, and what the server must prove; the words are libpq's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum SslMode {
    /// Never encrypted.
    Disable,
    /// Encrypted only if the server refuses what is not.
    Allow,
    /// Encrypted if the server can; whoever answers is believed.
    #[default]
    Prefer,
    /// Always encrypted. Whoever answers is believed, unless root certificates are given: then as `VerifyCa`.
    Require,
    /// Always encrypted, and the server's certificate is signed by a root certificate that is given.
    VerifyCa,
    /// The same, and the certificate has the name that the URL connects to.
    VerifyFull,
}

impl SslMode {
    /// All of them.
    pub const ALL: [SslMode; 6] = [
        SslMode::Disable,
        SslMode::Allow,
        SslMode::Prefer,
        SslMode::Require,
        SslMode::VerifyCa,
        SslMode::VerifyFull,
    ];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            SslMode::Disable => "disable",
            SslMode::Allow => "allow",
            SslMode::Prefer => "prefer",
            SslMode::Require => "require",
            SslMode::VerifyCa => "verify-ca",
            SslMode::VerifyFull => "verify-full",
        }
    }
}

impl FromStr for SslMode {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == word).ok_or(())
    }
}

impl fmt::Display for SslMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How connections are encrypted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tls {
    /// The mode; `None` is `Prefer`, or `VerifyFull` with the system's root certificates.
    pub mode: Option<SslMode>,
    /// A PEM file of root certificates, or `system`.
    pub root_cert: Option<PathBuf>,
    /// A PEM file with the certificate that the client shows, and those between it and a root.
    pub cert: Option<PathBuf>,
    /// A PEM file with the key of that certificate.
    pub key: Option<PathBuf>,
}

impl Tls {
    pub(crate) fn mode(&self) -> SslMode {
        self.mode.unwrap_or(if self.is_system() { SslMode::VerifyFull } else { SslMode::Prefer })
    }

    /// True if root certificates are given that the mode does not ask for.
    pub(crate) fn is_unchecked(&self) -> bool {
        self.root_cert.is_some() && self.mode() < SslMode::Require
    }

    fn is_system(&self) -> bool {
        self.root_cert.as_deref() == Some(Path::new("system"))
    }

    /// What the client library makes encrypted connections with; an error names the option that is wrong.
    pub(crate) fn connector(&self, is_direct: bool) -> Result<MakeRustlsConnect, String> {
        let mode = self.mode();
        if self.is_system() && mode != SslMode::VerifyFull {
            return Err(format!(
                "sslmode={mode} is too weak for sslrootcert=system, as anybody can get a certificate from a public \
                 authority: use sslmode=verify-full"
            ));
        }
        // ring, whatever other parts of the program have made the default of the process
        let provider = Arc::new(ring::default_provider());
        let verifier = Verifier {
            trust: match mode {
                SslMode::Disable | SslMode::Allow | SslMode::Prefer => {
                    // it proves nothing in these modes, but whoever names a file means one that is there
                    if let Some(path) = &self.root_cert {
                        certificates("sslrootcert", path)?;
                    }
                    None
                }
                SslMode::Require if self.root_cert.is_none() => None,
                SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => Some(self.trust(mode)?),
            },
            checks_name: mode == SslMode::VerifyFull,
            algorithms: provider.signature_verification_algorithms,
        };
        let config = self.client_config(provider, verifier, is_direct)?;
        Ok(MakeRustlsConnect::new(config))
    }

    fn client_config(
        &self,
        provider: Arc<CryptoProvider>,
        verifier: Verifier,
        is_direct: bool,
    ) -> Result<ClientConfig, String> {
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("TLS cannot be set up: {error}"))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match (&self.cert, &self.key) {
            (None, None) => builder.with_no_client_auth(),
            (Some(cert), Some(key)) => {
                let certificates = certificates("sslcert", cert)?;
                builder.with_client_auth_cert(certificates, private_key(key)?).map_err(|error| {
                    format!(
                        "sslcert {} and sslkey {} do not go together: {error}",
                        cert.display(),
                        key.display()
                    )
                })?
            }
            (Some(cert), None) => {
                return Err(format!("sslcert {} is given without sslkey: name its key", cert.display()));
            }
            (None, Some(key)) => {
                return Err(format!(
                    "sslkey {} is given without sslcert: name its certificate",
                    key.display()
                ));
            }
        };
        if is_direct {
            config.alpn_protocols = vec![b"postgresql".to_vec()];
        }
        Ok(config)
    }

    /// Whom the mode trusts. `verify-full` without root certificates trusts the system's: the name is checked.
    fn trust(&self, mode: SslMode) -> Result<Trust, String> {
        let found = match &self.root_cert {
            Some(path) if !self.is_system() => certificates("sslrootcert", path)?,
            None if mode == SslMode::VerifyCa => {
                return Err("sslmode=verify-ca needs sslrootcert=FILE with the certificates to trust".into());
            }
            _ => {
                // those of the system know of authorities of the house, and are kept up to date with it
                let found = rustls_native_certs::load_native_certs();
                if found.certs.is_empty() {
                    let errors: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
                    return Err(format!(
                        "the system has no root certificates{}{}; install them (Debian: ca-certificates) or name \
                         a file with sslrootcert",
                        if errors.is_empty() { "" } else { ": " },
                        errors.join(", ")
                    ));
                }
                found.certs
            }
        };
        let mut roots = RootCertStore::empty();
        let (usable, _) = roots.add_parsable_certificates(found.iter().cloned());
        match &self.root_cert {
            Some(path) if usable == 0 => {
                Err(format!("sslrootcert {} has no usable certificate", path.display()))
            }
            _ => Ok(Trust { roots, certificates: found }),
        }
    }
}

fn certificates(option: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let fail = |error: PemError| format!("{option} {} cannot be read: {}", path.display(), said(&error));
    let found =
        CertificateDer::pem_file_iter(path).map_err(fail)?.collect::<Result<Vec<_>, _>>().map_err(fail)?;
    if found.is_empty() {
        return Err(format!("{option} {} holds no certificate in PEM format", path.display()));
    }
    Ok(found)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let metadata = std::fs::metadata(path);
    #[cfg(unix)]
    if let Ok(metadata) = metadata {
        use std::os::unix::fs::MetadataExt;
        // as libpq: a key that belongs to root may be readable by its group
        let others = if metadata.uid() == 0 { 0o037 } else { 0o077 };
        if metadata.is_file() && metadata.mode() & others != 0 {
            return Err(format!("sslkey {} can be read by others: chmod 0600 it", path.display()));
        }
    }
    PrivateKeyDer::from_pem_file(path).map_err(|error| match error {
        PemError::NoItemsFound => format!(
            "sslkey {} holds no key that is understood: it must be in PEM format and not encrypted by a \
             passphrase",
            path.display()
        ),
        error => format!("sslkey {} cannot be read: {}", path.display(), said(&error)),
    })
}

fn said(error: &PemError) -> String {
    match error {
        PemError::Io(error) => error.to_string(),
        error => error.to_string(),
    }
}

/// Whose signatures count.
#[derive(Debug)]
struct Trust {
    roots: RootCertStore,
    /// The same certificates as they stand in the file: a server may show one of them itself.
    certificates: Vec<CertificateDer<'static>>,
}

/// Judges the server's certificate.
#[derive(Debug)]
struct Verifier {
    /// `None`: any certificate will do.
    trust: Option<Trust>,
    checks_name: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(trust) = &self.trust else { return Ok(ServerCertVerified::assertion()) };
        let certificate = ParsedCertificate::try_from(end_entity)?;
        // a certificate that signs itself is its own root, and an authority's, which a chain must not end in
        if !trust.certificates.contains(end_entity) {
            verify_server_cert_signed_by_trust_anchor(
                &certificate,
                &trust.roots,
                intermediates,
                now,
                self.algorithms.all,
            )
            .map_err(|error| {
                explained("the server's certificate is not signed by one of sslrootcert", error)
            })?;
        }
        if self.checks_name {
            verify_server_name(&certificate, server_name)
                .map_err(|error| explained("the server's certificate is of another name", error))?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// An error with what it means, for people.
#[derive(Debug)]
struct Explained(&'static str, Error);

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.0, self.1)
    }
}

impl std::error::Error for Explained {}

fn explained(what: &'static str, error: Error) -> Error {
    Error::Other(OtherError(Arc::new(Explained(what, error))))
}
