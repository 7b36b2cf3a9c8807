use super::*;
use crate::http::WebPages;

const PAGE: &str = "https://pages.example.com";

fn pages() -> (tempfile::TempDir, WebPages) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("assets")).unwrap();
    for (name, content) in [
        ("index.html", "<html>"),
        ("assets/a.js", "script"),
        (".secret", "hidden"),
        ("jsonrpc", "no file"),
    ] {
        std::fs::write(dir.path().join(name), content).unwrap();
    }
    std::os::unix::fs::symlink("/etc/passwd", dir.path().join("link")).unwrap();
    let pages = WebPages::read(Some(dir.path()), vec![PAGE.to_owned()]).unwrap();
    (dir, pages)
}

/// Starts a server on TCP and returns its connection.
async fn served(pages: WebPages) -> (Server, tokio::net::TcpStream) {
    let dir = tempfile::tempdir().unwrap();
    let tls = crate::http::tls_identity(dir.path(), "h").unwrap().config;
    let listener = ApiListener::tcp("127.0.0.1:0,plain".parse().unwrap(), &tls).await.unwrap();
    let port = port(&listener);
    let api_handler: Arc<dyn ApiHandler> = Arc::new(Echo::default());
    let server = Server::begin(vec![listener], &api_handler, pages);
    (server, tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap())
}

async fn get(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> (String, String) {
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: h\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    read_answer(stream).await
}

#[tokio::test]
async fn a_directory_is_served() {
    let (_dir, pages) = pages();
    let (server, mut stream) = served(pages).await;
    for (path, kind, content) in [
        ("/", "text/html; charset=utf-8", "<html>"),
        ("/index.html", "text/html; charset=utf-8", "<html>"),
        ("/assets/a.js", "text/javascript; charset=utf-8", "script"),
    ] {
        let (head, body) = get(&mut stream, "GET", path, "", "").await;
        assert!(head.starts_with("http/1.1 200"), "{path}: {head}");
        assert!(head.contains(&format!("content-type: {kind}")), "{path}: {head}");
        assert_eq!(body, content, "{path}");
    }
    // Calls go on where the pages are.
    let (_, body) = get(&mut stream, "POST", "/", "", &xml("test.a")).await;
    assert!(body.contains("test.a of 0"), "{body}");
    server.stop().await;
}

#[tokio::test]
async fn only_files_of_the_directory_are_served() {
    for path in
        ["/.secret", "/link", "/assets", "/assets/", "/../etc/passwd", "/assets/../.secret", "//"]
    {
        let (_dir, pages) = pages();
        let (server, mut stream) = served(pages).await;
        let (head, _) = get(&mut stream, "GET", path, "", "").await;
        assert!(head.starts_with("http/1.1 404"), "{path}: {head}");
        server.stop().await;
    }
    let (_dir, pages) = pages();
    let (server, mut stream) = served(pages).await;
    let (head, _) = get(&mut stream, "GET", "/jsonrpc", "", "").await;
    assert!(head.starts_with("http/1.1 405"), "the API comes first: {head}");
    server.stop().await;
}

#[tokio::test]
async fn pages_of_other_servers_call_if_they_may() {
    let (_dir, pages) = pages();
    let (server, mut stream) = served(pages).await;
    let asks = format!("Origin: {PAGE}\r\nAccess-Control-Request-Method: POST\r\n");
    let (head, _) = get(&mut stream, "OPTIONS", "/jsonrpc", &asks, "").await;
    assert!(head.starts_with("http/1.1 204"), "{head}");
    for line in [
        "access-control-allow-origin: https://pages.example.com",
        "access-control-allow-headers: content-type",
        "vary: origin",
    ] {
        assert!(head.contains(line), "{line}: {head}");
    }
    let origin = format!("Origin: {PAGE}\r\n");
    let (head, body) = get(&mut stream, "POST", "/jsonrpc", &origin, &json("test.a")).await;
    assert!(head.contains("access-control-allow-origin: https://pages"), "{head}");
    assert!(body.contains("test.a of 2"), "{body}");

    let other = "Origin: https://other.example.com\r\n";
    let (head, _) = get(&mut stream, "POST", "/jsonrpc", other, &json("test.a")).await;
    assert!(!head.contains("access-control"), "its browser keeps the answer from it: {head}");
    let asks = format!("{other}Access-Control-Request-Method: POST\r\n");
    let (head, _) = get(&mut stream, "OPTIONS", "/jsonrpc", &asks, "").await;
    assert!(head.starts_with("http/1.1 405") && !head.contains("access-control"), "{head}");
    server.stop().await;
}

#[test]
fn a_directory_that_cannot_be_served_is_named() {
    let (dir, _) = pages();
    let absent = dir.path().join("absent");
    let error = WebPages::read(Some(&absent), Vec::new()).unwrap_err().to_string();
    assert!(error.contains("web.directory") && error.contains("absent"), "{error}");
    std::fs::File::create(dir.path().join("large")).unwrap().set_len(65 << 20).unwrap();
    let error = WebPages::read(Some(dir.path()), Vec::new()).unwrap_err().to_string();
    assert!(error.contains("more than"), "{error}");
}
