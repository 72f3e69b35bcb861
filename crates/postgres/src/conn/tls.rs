//! TLS: the options `sslmode`, `sslrootcert`, `sslcert` and `sslkey`, with the semantics of libpq.

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

/// The encryption of connections, and the proof of identity that a server must give. The names are those of libpq.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum SslMode {
    /// Connections are never encrypted.
    Disable,
    /// Connections are encrypted only if the server rejects unencrypted ones.
    Allow,
    /// Connections are encrypted if the server supports encryption. The server's certificate is not verified.
    #[default]
    Prefer,
    /// Connections are always encrypted. The server's certificate is not verified unless root certificates are given.
    /// With root certificates, this mode is the same as `VerifyCa`.
    Require,
    /// Connections are always encrypted, and one of the given root certificates must have signed the server's certificate.
    VerifyCa,
    /// Like `VerifyCa`, and the certificate must have the host's name from the URL.
    VerifyFull,
}

impl SslMode {
    /// All modes.
    pub const ALL: [SslMode; 6] = [
        SslMode::Disable,
        SslMode::Allow,
        SslMode::Prefer,
        SslMode::Require,
        SslMode::VerifyCa,
        SslMode::VerifyFull,
    ];

    /// Returns the mode's name in URLs.
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

/// The options of encryption.
#[derive(Clone, Debug, Default)]
pub(crate) struct TlsOptions {
    /// The mode. `None` means `Prefer`, or `VerifyFull` with the system's root certificates.
    pub mode: Option<SslMode>,
    /// A PEM file of root certificates to trust, or `system`.
    pub root_cert: Option<PathBuf>,
    /// A PEM file with the client certificate, and the intermediate certificates.
    pub cert: Option<PathBuf>,
    /// A PEM file with the key of the client certificate.
    pub key: Option<PathBuf>,
}

impl TlsOptions {
    pub(crate) fn mode(&self) -> SslMode {
        self.mode.unwrap_or(if self.uses_system_roots() { SslMode::VerifyFull } else { SslMode::Prefer })
    }

    /// Whether root certificates are given that the mode does not use.
    pub(crate) fn has_unused_root_cert(&self) -> bool {
        self.root_cert.is_some() && self.mode() < SslMode::Require
    }

    fn uses_system_roots(&self) -> bool {
        self.root_cert.as_deref() == Some(Path::new("system"))
    }

    /// Builds the client library's TLS connector. An error names the option that is wrong.
    pub(crate) fn build_connector(&self, is_direct: bool) -> Result<MakeRustlsConnect, String> {
        let mode = self.mode();
        if self.uses_system_roots() && mode != SslMode::VerifyFull {
            return Err(format!(
                "sslmode={mode} is too weak for sslrootcert=system, as anyone can get a certificate from a public \
                 authority: use sslmode=verify-full"
            ));
        }
        // always ring, even if another part of the program has installed another default provider
        let provider = Arc::new(ring::default_provider());
        let verifier = CertificateVerifier {
            trusted_roots: match mode {
                SslMode::Disable | SslMode::Allow | SslMode::Prefer => {
                    // these modes do not use the file, but a file that cannot be read is a mistake
                    if let Some(path) = &self.root_cert {
                        read_certificates("sslrootcert", path)?;
                    }
                    None
                }
                SslMode::Require if self.root_cert.is_none() => None,
                SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => {
                    Some(self.load_trusted_roots(mode)?)
                }
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
        verifier: CertificateVerifier,
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
                let certificates = read_certificates("sslcert", cert)?;
                builder.with_client_auth_cert(certificates, read_private_key(key)?).map_err(|error| {
                    format!("sslcert {} and sslkey {} do not match: {error}", cert.display(), key.display())
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

    /// Loads the root certificates to trust. `verify-full` without root certificates trusts the certificates of the
    /// system, because this mode checks the server's name, too.
    fn load_trusted_roots(&self, mode: SslMode) -> Result<TrustedRoots, String> {
        let certificates = match &self.root_cert {
            Some(path) if !self.uses_system_roots() => read_certificates("sslrootcert", path)?,
            None if mode == SslMode::VerifyCa => {
                return Err("sslmode=verify-ca needs sslrootcert=FILE with the certificates to trust".into());
            }
            _ => {
                // the system's certificates include the authorities of the user's organisation, and are updated with
                // the system
                let native = rustls_native_certs::load_native_certs();
                if native.certs.is_empty() {
                    let errors: Vec<String> = native.errors.iter().map(ToString::to_string).collect();
                    return Err(format!(
                        "the system has no root certificates{}{}; install them (Debian: ca-certificates) or name \
                         a file with sslrootcert",
                        if errors.is_empty() { "" } else { ": " },
                        errors.join(", ")
                    ));
                }
                native.certs
            }
        };
        let mut roots = RootCertStore::empty();
        let (usable, _) = roots.add_parsable_certificates(certificates.iter().cloned());
        match &self.root_cert {
            Some(path) if usable == 0 => {
                Err(format!("sslrootcert {} has no usable certificate", path.display()))
            }
            _ => Ok(TrustedRoots { roots, certificates }),
        }
    }
}

fn read_certificates(option: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let fail =
        |error: PemError| format!("{option} {} cannot be read: {}", path.display(), pem_error_text(&error));
    let found =
        CertificateDer::pem_file_iter(path).map_err(fail)?.collect::<Result<Vec<_>, _>>().map_err(fail)?;
    if found.is_empty() {
        return Err(format!("{option} {} holds no certificate in PEM format", path.display()));
    }
    Ok(found)
}

fn read_private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let metadata = std::fs::metadata(path);
    #[cfg(unix)]
    if let Ok(metadata) = metadata {
        use std::os::unix::fs::MetadataExt;
        // as in libpq, a key that belongs to root may be readable by its group
        let others = if metadata.uid() == 0 { 0o037 } else { 0o077 };
        if metadata.is_file() && metadata.mode() & others != 0 {
            return Err(format!(
                "sslkey {} can be read by other users: run chmod 0600 on it",
                path.display()
            ));
        }
    }
    PrivateKeyDer::from_pem_file(path).map_err(|error| match error {
        PemError::NoItemsFound => format!(
            "sslkey {} holds no key that can be read: it must be in PEM format and not encrypted by a \
             passphrase",
            path.display()
        ),
        error => format!("sslkey {} cannot be read: {}", path.display(), pem_error_text(&error)),
    })
}

fn pem_error_text(error: &PemError) -> String {
    match error {
        PemError::Io(error) => error.to_string(),
        error => error.to_string(),
    }
}

/// The certificates whose signatures are trusted.
#[derive(Debug)]
struct TrustedRoots {
    roots: RootCertStore,
    /// The same certificates in full, because a server may present one of them as its own.
    certificates: Vec<CertificateDer<'static>>,
}

/// A verifier of the server's certificate.
#[derive(Debug)]
struct CertificateVerifier {
    /// The trusted certificates. `None` accepts any certificate.
    trusted_roots: Option<TrustedRoots>,
    checks_name: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for CertificateVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(trusted) = &self.trusted_roots else { return Ok(ServerCertVerified::assertion()) };
        let certificate = ParsedCertificate::try_from(end_entity)?;
        // a self-signed certificate is its own root; it is marked as an authority's certificate, and the verification
        // below does not accept such a certificate from a server
        if !trusted.certificates.contains(end_entity) {
            verify_server_cert_signed_by_trust_anchor(
                &certificate,
                &trusted.roots,
                intermediates,
                now,
                self.algorithms.all,
            )
            .map_err(|error| {
                certificate_error(
                    "the server's certificate is not signed by a certificate of sslrootcert",
                    error,
                )
            })?;
        }
        if self.checks_name {
            verify_server_name(&certificate, server_name)
                .map_err(|error| certificate_error("the server's certificate is for another name", error))?;
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

/// A certificate error with an explanation for users.
#[derive(Debug)]
struct CertificateError(&'static str, Error);

impl fmt::Display for CertificateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.0, self.1)
    }
}

impl std::error::Error for CertificateError {}

fn certificate_error(explanation: &'static str, error: Error) -> Error {
    Error::Other(OtherError(Arc::new(CertificateError(explanation, error))))
}
