//! Tests of `ringbell nc` over TAP against Linux TCP programs: bytes, half-close, time-outs,
//! signals.
#![allow(clippy::disallowed_methods)] // Programs are waited for.

use crate::net;

use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use net::{folder, installed, random_file, sha256, start, Namespace};

/// Sends the file of argument 4 and half-closes, and at the same time writes what comes to that of
/// argument 5, until its end. Arguments 1 to 3: `connect` or `serve`, address, port.
const BOTH_WAYS: &str = r#"
import socket, sys, threading
role, ip, port, source, sink = sys.argv[1:]
if role == "connect":
    s = socket.create_connection((ip, int(port)), 60)
else:
    l = socket.create_server((ip, int(port)))
    print("serving", file=sys.stderr, flush=True)
    s = l.accept()[0]
s.settimeout(60)
def send():
    s.sendall(open(source, "rb").read())
    s.shutdown(socket.SHUT_WR)
t = threading.Thread(target=send)
t.start()
with open(sink, "wb") as f:
    while (b := s.recv(1 << 20)): f.write(b)
t.join()
"#;

/// Serves one client: reads to the end of its stream, and only then sends it back. Without
/// half-close both would wait for ever.
const ECHO_AFTER_END: &str = r#"
import socket, sys
l = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("serving", file=sys.stderr, flush=True)
s = l.accept()[0]
s.settimeout(60)
data = bytearray()
while (b := s.recv(1 << 20)): data += b
s.sendall(data)
s.close()
"#;

const TAP: [&str; 6] = [
    "--port",
    "tap:rb0",
    "--ip",
    "10.99.0.2/24",
    "--host-ip",
    "10.99.0.1/24",
];

fn nc<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&["nc", "-v"], &TAP[..], args].concat()
}

fn file(path: &Path) -> File {
    File::open(path).expect("the file is there")
}

fn created(path: &Path) -> File {
    File::create(path).expect("a file can be made")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// The TAP's kernel end has its address only once the NIC has opened it.
fn wait_for_address(n: &Namespace) {
    for _ in 0..2000 {
        let mut ip = n.command("ip");
        ip.args(["-br", "addr", "show", "rb0"]);
        if String::from_utf8_lossy(&net::output(ip).stdout).contains("10.99.0.1") {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("the TAP device did not get its address");
}

#[test]
fn a_linux_client_and_a_listening_nc_exchange_files_at_once() {
    let n = match Namespace::with_tap() {
        Ok(n) => n,
        Err(why) => skip!("{why}"),
    };
    let dir = folder("nc-listen");
    let path = |name: &str| dir.join(name);
    random_file(&path("a"), net::FILE_BYTES, 1);
    random_file(&path("b"), net::FILE_BYTES, 2);
    let mut command = n.ringbell(&nc(&["-l", "5000"]));
    command
        .stdin(file(&path("a")))
        .stdout(created(&path("b-received")));
    let mut ours = start(command);
    ours.says("listening");
    let theirs = start(n.python(
        BOTH_WAYS,
        &[
            "connect",
            "10.99.0.2",
            "5000",
            text(&path("b")),
            text(&path("a-received")),
        ],
    ));
    theirs.succeeds();
    ours.succeeds();
    assert_eq!(sha256(&path("a")), sha256(&path("a-received")));
    assert_eq!(sha256(&path("b")), sha256(&path("b-received")));
}

/// More than every window, buffer and counter of 16 bits on the way: sequence numbers of TCP go
/// through a sixteenth of their range.
#[test]
fn a_quarter_of_a_gibibyte_goes_over_a_tap_device() {
    let n = match Namespace::with_tap() {
        Ok(n) => n,
        Err(why) => skip!("{why}"),
    };
    let dir = folder("nc-large");
    let path = |name: &str| dir.join(name);
    random_file(&path("a"), 256 << 20, 9);
    random_file(&path("b"), 1, 10);
    let mut command = n.ringbell(&nc(&["-l", "5010"]));
    command
        .stdin(file(&path("b")))
        .stdout(created(&path("a-received")));
    let mut ours = start(command);
    ours.says("listening");
    let (from, to) = (path("a"), path("b-received"));
    let args = ["connect", "10.99.0.2", "5010", text(&from), text(&to)];
    start(n.python(BOTH_WAYS, &args)).succeeds();
    ours.succeeds();
    assert_eq!(sha256(&path("a")), sha256(&path("a-received")));
}

#[test]
fn nc_connects_to_a_linux_server_and_half_closes() {
    let n = match Namespace::with_tap() {
        Ok(n) => n,
        Err(why) => skip!("{why}"),
    };
    let dir = folder("nc-connect");
    let path = |name: &str| dir.join(name);
    random_file(&path("a"), net::FILE_BYTES, 3);
    let mut server = start(n.python(ECHO_AFTER_END, &["0.0.0.0", "5001"]));
    server.says("serving");
    let mut command = n.ringbell(&nc(&["10.99.0.1", "5001"]));
    command
        .stdin(file(&path("a")))
        .stdout(created(&path("back")));
    start(command).succeeds();
    server.succeeds();
    assert_eq!(sha256(&path("a")), sha256(&path("back")));
}

#[test]
fn a_lossy_link_loses_no_byte() {
    let n = match Namespace::with_tap() {
        Ok(n) => n,
        Err(why) => skip!("{why}"),
    };
    let dir = folder("nc-loss");
    let path = |name: &str| dir.join(name);
    random_file(&path("a"), 1 << 20, 4);
    let mut server = start(n.python(ECHO_AFTER_END, &["0.0.0.0", "5002"]));
    server.says("serving");
    let mut command = n.ringbell(&nc(&[
        "--loss",
        "0.02",
        "--reorder",
        "0.05",
        "10.99.0.1",
        "5002",
    ]));
    command
        .stdin(file(&path("a")))
        .stdout(created(&path("back")));
    start(command).succeeds();
    assert_eq!(sha256(&path("a")), sha256(&path("back")));
}

#[test]
fn netcat_talks_to_nc_in_both_roles() {
    if !installed("nc") {
        skip!("netcat is not installed (package netcat-openbsd)");
    }
    let n = match Namespace::with_tap() {
        Ok(n) => n,
        Err(why) => skip!("{why}"),
    };
    let dir = folder("nc-netcat");
    let path = |name: &str| dir.join(name);
    random_file(&path("a"), net::FILE_BYTES, 5);
    random_file(&path("b"), net::FILE_BYTES, 6);
    for role in ["listen", "connect"] {
        let (ours, theirs) = if role == "listen" {
            let mut command = n.ringbell(&nc(&["-l", "5003"]));
            command
                .stdin(file(&path("a")))
                .stdout(created(&path("b-received")));
            let mut ours = start(command);
            ours.says("listening");
            let mut command = n.command("nc");
            command.args(["-n", "-N", "10.99.0.2", "5003"]);
            command
                .stdin(file(&path("b")))
                .stdout(created(&path("a-received")));
            (ours, start(command))
        } else {
            let mut command = n.command("nc");
            command.args(["-n", "-N", "-v", "-l", "5004"]);
            // OpenBSD's netcat, when it listens, ends with its input half sent as soon as the peer
            // has half-closed: in this role it only receives.
            command
                .stdin(std::process::Stdio::null())
                .stdout(created(&path("a-received")));
            let mut theirs = start(command);
            theirs.says("istening");
            let mut command = n.ringbell(&nc(&["10.99.0.1", "5004"]));
            command
                .stdin(file(&path("a")))
                .stdout(created(&path("b-received")));
            (start(command), theirs)
        };
        ours.succeeds();
        theirs.succeeds();
        assert_eq!(sha256(&path("a")), sha256(&path("a-received")), "{role}");
        if role == "listen" {
            assert_eq!(sha256(&path("b")), sha256(&path("b-received")), "{role}");
        }
    }
}

#[test]
fn curl_gets_a_page_that_nc_serves() {
    if !installed("curl") {
        skip!("curl is not installed");
    }
    let n = match Namespace::with_tap() {
        Ok(n) => n,
        Err(why) => skip!("{why}"),
    };
    let dir = folder("nc-curl");
    let response = dir.join("response");
    std::fs::write(
        &response,
        "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nfrom a GPU\n",
    )
    .expect("written");
    let mut command = n.ringbell(&nc(&["-l", "8080"]));
    command
        .stdin(file(&response))
        .stdout(created(&dir.join("request")));
    let mut ours = start(command);
    ours.says("listening");
    let mut curl = n.command("curl");
    curl.args(["-sS", "--max-time", "60", "http://10.99.0.2:8080/page"]);
    let out = net::output(curl);
    assert_eq!(
        String::from_utf8_lossy(&out.stdout),
        "from a GPU\n",
        "{out:?}"
    );
    ours.succeeds();
    let request = std::fs::read_to_string(dir.join("request")).expect("received");
    assert!(request.starts_with("GET /page HTTP/1.1\r\n"), "{request}");
}

#[test]
fn nc_gets_a_page_from_pythons_http_server() {
    let n = match Namespace::with_tap() {
        Ok(n) => n,
        Err(why) => skip!("{why}"),
    };
    let dir = folder("nc-http");
    random_file(&dir.join("page"), 1 << 20, 7);
    let mut server = n.command("python3");
    server
        .args(["-u", "-m", "http.server", "8000", "--directory", text(&dir)])
        .stdout(Stdio::null());
    let _server = start(server);
    // The server sends nothing before a request: send one from the same namespace first.
    let asked = net::output(n.python(
        "import socket, sys, time\nfor _ in range(2000):\n    try: socket.create_connection(('127.0.0.1', 8000), 1); sys.exit(0)\n    except OSError: time.sleep(0.01)\nsys.exit(1)",
        &[],
    ));
    assert!(asked.status.success(), "{asked:?}");
    let mut command = n.ringbell(&nc(&["10.99.0.1", "8000"]));
    std::fs::write(dir.join("request"), "GET /page HTTP/1.0\r\n\r\n").expect("written");
    command
        .stdin(file(&dir.join("request")))
        .stdout(created(&dir.join("response")));
    start(command).succeeds();
    let response = std::fs::read(dir.join("response")).expect("received");
    let body = response
        .windows(4)
        .position(|w| w == b"\r\n\r\n")
        .expect("a head")
        + 4;
    std::fs::write(dir.join("body"), &response[body..]).expect("written");
    assert_eq!(sha256(&dir.join("page")), sha256(&dir.join("body")));
}

#[test]
fn a_missing_listener_is_reported_in_time() {
    let n = match Namespace::with_tap() {
        Ok(n) => n,
        Err(why) => skip!("{why}"),
    };
    // A host that runs refuses; one that does not never answers.
    let (code, said) = start(n.ringbell(&nc(&["-d", "10.99.0.1", "5005"]))).ends();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("CONNECTION_REFUSED"), "{said}");
    let (code, said) = start(n.ringbell(&nc(&["-d", "-w", "2", "10.99.0.77", "5005"]))).ends();
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("HOST_UNREACHABLE") || said.contains("TIMED_OUT"),
        "{said}"
    );
}

#[test]
fn an_idle_connection_ends_with_w_and_stays_open_without() {
    let n = match Namespace::with_tap() {
        Ok(n) => n,
        Err(why) => skip!("{why}"),
    };
    // Answers only after so many seconds; it then holds its end open until the client's has ended.
    let slow = "import socket, sys, time\nl = socket.create_server(('0.0.0.0', int(sys.argv[1])))\nprint('serving', file=sys.stderr, flush=True)\ns = l.accept()[0]\ntime.sleep(int(sys.argv[2]))\ns.sendall(b'late')\ns.shutdown(1)\ntry:\n    while s.recv(1): pass\nexcept ConnectionError: print('reset', file=sys.stderr, flush=True)\n";
    let mut server = start(n.python(slow, &["5006", "2"]));
    server.says("serving");
    let mut command = n.ringbell(&nc(&["10.99.0.1", "5006"]));
    let dir = folder("nc-idle");
    let out = dir.join("out");
    command.stdin(Stdio::null()).stdout(created(&out));
    start(command).succeeds();
    assert_eq!(std::fs::read(&out).expect("received"), b"late");

    let mut server = start(n.python(slow, &["5007", "600"]));
    server.says("serving");
    let mut command = n.ringbell(&nc(&["-w", "1", "--keep-open", "10.99.0.1", "5007"]));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let (code, said) = start(command).ends();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("no byte went either way"), "{said}");
}

#[test]
fn an_interrupt_resets_the_connection_and_ends_with_130() {
    let n = match Namespace::with_tap() {
        Ok(n) => n,
        Err(why) => skip!("{why}"),
    };
    let mut command = n.ringbell(&nc(&["-l", "5008"]));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut ours = start(command);
    ours.says("listening");
    wait_for_address(&n);
    let client = "import socket, sys\ns = socket.create_connection(('10.99.0.2', 5008), 60)\ns.sendall(b'x')\ntry: sys.exit(0 if s.recv(1) == b'' else 1)\nexcept ConnectionResetError: sys.exit(9)\n";
    let theirs = start(n.python(client, &[]));
    let mut byte = [0];
    let got = std::io::Read::read_exact(ours.child().stdout.as_mut().expect("piped"), &mut byte);
    assert!(got.is_ok() && byte == *b"x");
    let pid = rustix::process::Pid::from_raw(ours.pid() as i32).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    let (code, said) = ours.ends();
    assert_eq!(code, Some(130), "{said}");
    assert_eq!(theirs.ends().0, Some(9), "the peer must see the reset");
}
