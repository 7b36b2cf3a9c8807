use std::sync::Arc;

mod hostile;

use proptest::prelude::*;

use super::*;
use crate::coerce::coerce;
use crate::test_values::{self, map, text as texts};
use crate::value::Encoded;

pub(super) const PYTHON: &str = "<?xml version='1.0'?>\n<methodCall>\n\
    <methodName>session.login_with_password</methodName>\n<params>\n<param>\n\
    <value><string>root</string></value>\n</param>\n<param>\n<value><string></string></value>\n\
    </param>\n<param>\n<value><double>5.0</double></value>\n</param>\n</params>\n</methodCall>\n";
pub(super) const JAVA: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><methodCall>\
    <methodName>VM.start</methodName><params><param><value>OpaqueRef:s</value></param><param>\
    <value><boolean>0</boolean></value></param></params></methodCall>";
pub(super) const NODE: &str =
    r#"{"jsonrpc":"2.0","method":"session.login_with_password","params":["root",""],"id":"0"}"#;
pub(super) const OLD: &str = r#"{"method":"VM.start","params":["OpaqueRef:s",false],"id":3}"#;

pub(super) fn call_of(method: &str, dialect: Dialect) -> Call {
    Call { method: method.to_owned(), params: Vec::new(), dialect }
}

pub(super) fn dialects() -> [Dialect; 3] {
    [Dialect::Xml, Dialect::Json(Version::V1, Id::from(7)), Dialect::Json(Version::V2, Id::from(7))]
}

fn refusal() -> ApiError {
    ApiError::new("VM_BAD_POWER_STATE", ["OpaqueRef:1", "halted", "running"])
}

#[test]
fn calls_as_clients_send_them() {
    let python = parse(Encoding::Xml, PYTHON.as_bytes()).unwrap();
    assert_eq!(python.method, "session.login_with_password");
    assert_eq!(python.params, [Value::text("root"), Value::text(""), Value::Float(5.0)]);
    assert_eq!(python.dialect, Dialect::Xml);
    let java = parse(Encoding::Xml, JAVA.as_bytes()).unwrap();
    assert_eq!(java.method, "VM.start");
    assert_eq!(java.params, [Value::text("OpaqueRef:s"), Value::Bool(false)]);
    let node = parse(Encoding::Json, NODE.as_bytes()).unwrap();
    assert_eq!(node.method, "session.login_with_password");
    assert_eq!(node.params, [Value::text("root"), Value::text("")]);
    let old = parse(Encoding::Json, OLD.as_bytes()).unwrap();
    assert_eq!(old.params, [Value::text("OpaqueRef:s"), Value::Bool(false)]);
    assert_eq!(old.dialect, Dialect::Json(Version::V1, Id::from(3)));
    assert_eq!(
        answer(&node, &Ok(Value::text(""))).to_text(),
        r#"{"jsonrpc":"2.0","result":"","id":"0"}"#
    );
}

#[test]
fn calls_without_parameters() {
    let empty = "<methodCall><methodName> system.listMethods\n</methodName></methodCall>";
    for xml in [empty, &empty.replace("</methodCall>", "<params/></methodCall>")] {
        let call = parse(Encoding::Xml, xml.as_bytes()).unwrap();
        assert_eq!(call, call_of("system.listMethods", Dialect::Xml));
    }
    let json = br#"{"jsonrpc":"2.0","method":"system.listMethods","id":7}"#;
    let call = parse(Encoding::Json, json).unwrap();
    assert_eq!(call, call_of("system.listMethods", Dialect::Json(Version::V2, Id::from(7))));
}

#[test]
fn answers_as_bytes() {
    let outcome = Ok(map([("power_state", Value::text("Running")), ("domid", Value::Int(3))]));
    let refused = Err(refusal());
    let texts = dialects().map(|dialect| {
        let call = call_of("VM.get_record", dialect);
        [answer(&call, &outcome).to_text(), answer(&call, &refused).to_text()]
    });
    assert_eq!(
        texts,
        [
            [
                "<?xml version=\"1.0\"?><methodResponse><params><param><value><struct>\
             <member><name>Status</name><value>Success</value></member>\
             <member><name>Value</name><value><struct>\
             <member><name>domid</name><value>3</value></member>\
             <member><name>power_state</name><value>Running</value></member>\
             </struct></value></member>\
             </struct></value></param></params></methodResponse>",
                "<?xml version=\"1.0\"?><methodResponse><params><param><value><struct>\
             <member><name>Status</name><value>Failure</value></member>\
             <member><name>ErrorDescription</name><value><array><data>\
             <value>VM_BAD_POWER_STATE</value><value>OpaqueRef:1</value>\
             <value>halted</value><value>running</value></data></array></value></member>\
             </struct></value></param></params></methodResponse>",
            ],
            [
                r#"{"result":{"domid":3,"power_state":"Running"},"error":null,"id":7}"#,
                r#"{"result":null,"error":["VM_BAD_POWER_STATE","OpaqueRef:1","halted","running"],"id":7}"#,
            ],
            [
                r#"{"jsonrpc":"2.0","result":{"domid":3,"power_state":"Running"},"id":7}"#,
                r#"{"jsonrpc":"2.0","error":{"code":1,"message":"VM_BAD_POWER_STATE","data":["OpaqueRef:1","halted","running"]},"id":7}"#,
            ],
        ]
    );
}

#[test]
fn calls_as_bytes() {
    let texts = dialects().map(|dialect| {
        let params = vec![Value::text("OpaqueRef:s"), Value::Bool(true), Value::Int(5)];
        call(&Call { params, ..call_of("VM.start", dialect) }).to_text()
    });
    assert_eq!(
        texts,
        [
            "<?xml version=\"1.0\"?><methodCall><methodName>VM.start</methodName><params>\
         <param><value>OpaqueRef:s</value></param><param><value><boolean>1</boolean></value></param>\
         <param><value>5</value></param></params></methodCall>",
            r#"{"method":"VM.start","params":["OpaqueRef:s",true,5],"id":7}"#,
            r#"{"jsonrpc":"2.0","method":"VM.start","params":["OpaqueRef:s",true,5],"id":7}"#,
        ]
    );
}

#[test]
fn the_list_of_methods_stands_alone() {
    let methods = Ok(Value::Set(vec![Value::text("VM.start")]));
    let list = call_of(LIST_METHODS, Dialect::Xml);
    let alone = answer(&list, &methods).to_text();
    assert_eq!(
        alone,
        "<?xml version=\"1.0\"?><methodResponse><params><param><value><array><data>\
         <value>VM.start</value></data></array></value></param></params></methodResponse>"
    );
    assert_eq!(outcome(&list, alone.as_bytes()), Ok(methods.clone()));
    // Only for this method. For others, a client must not accept it as a result.
    let other = outcome(&call_of("VM.get_all", Dialect::Xml), alone.as_bytes());
    assert_eq!(other, Err(BadBody::Unfit("the answer has no status".into())));
    let refused = answer(&list, &Err(refusal()));
    assert_eq!(outcome(&list, refused.to_text().as_bytes()), Ok(Err(refusal())));
    let json = call_of(LIST_METHODS, Dialect::Json(Version::V2, Id::from(1)));
    let text = answer(&json, &methods).to_text();
    assert_eq!(text, r#"{"jsonrpc":"2.0","result":["VM.start"],"id":1}"#);
}

#[test]
fn answers_that_make_no_sense() {
    let list = call_of("VM.start", Dialect::Xml);
    let answer = |members: &str| {
        format!(
            "<methodResponse><params><param><value><struct>{members}</struct></value></param>\
             </params></methodResponse>"
        )
    };
    let member = |name: &str, value: &str| {
        format!("<member><name>{name}</name><value>{value}</value></member>")
    };
    let failed = member("Status", "Failure");
    let details = |list: &str| {
        failed.clone() + &member("ErrorDescription", &format!("<array><data>{list}</data></array>"))
    };
    for (members, reason) in [
        (String::new(), "neither Success nor Failure"),
        (member("Status", "success"), "neither Success nor Failure"),
        (member("Status", "Success"), "no value"),
        (failed.clone(), "no code"),
        (failed.clone() + &member("ErrorDescription", "C"), "no code"),
        (details(""), "no code"),
        (details("<value><int>1</int></value>"), "no code"),
        (details("<value>C</value><value><int>1</int></value>"), "no code"),
    ] {
        let refused = outcome(&list, answer(&members).as_bytes());
        let Err(BadBody::Unfit(why)) = refused else { panic!("{members}: {refused:?}") };
        assert!(why.contains(reason), "{members}: {why}");
    }
    for text in [
        "<methodResponse><fault/></methodResponse>",
        "<methodResponse><params/></methodResponse>",
        "<methodCall/>",
        "<html><body>502</body></html>",
    ] {
        assert!(outcome(&list, text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn where_and_as_what() {
    for path in ["/", "/RPC2", "/xmlrpc"] {
        assert_eq!(Encoding::of_path(path), Some(Encoding::Xml));
    }
    assert_eq!(Encoding::of_path("/jsonrpc"), Some(Encoding::Json));
    for path in ["", "/rpc2", "/jsonrpc/", "/import_raw_vdi"] {
        assert_eq!(Encoding::of_path(path), None);
    }
    let types = dialects().map(|dialect| dialect.encoding().content_type());
    assert_eq!(types, ["text/xml", "application/json", "application/json"]);
}

#[test]
fn what_is_kept_is_sent_as_it_is() {
    let kept = Encoded::new(map([("name_label", Value::text("a"))]));
    let snapshot = |_| map([("snapshot", Value::Encoded(Arc::clone(&kept)))]);
    let events = Ok(Value::Set((0..3).map(snapshot).collect()));
    for dialect in dialects() {
        let call = call_of("event.from", dialect);
        let body = answer(&call, &events);
        assert_eq!(
            outcome(&call, body.to_text().as_bytes()),
            Ok(Ok(test_values::unkept(events.as_ref().unwrap())))
        );
        let references = body.into_pieces().into_iter();
        let references = references.filter(|piece| matches!(piece, Piece::Kept(..)));
        assert_eq!(references.count(), 3);
    }
}

proptest! {
    #[test]
    fn a_call_comes_back(
        method in "[A-Za-z_.]{1,20}",
        params in prop::collection::vec(test_values::typed(), 0..4),
        which in 0..3_usize,
    ) {
        let dialect = dialects()[which].clone();
        let (types, params): (Vec<_>, Vec<_>) = params.into_iter().unzip();
        let sent = Call { method, params, dialect };
        let mut read = parse(sent.dialect.encoding(), call(&sent).to_text().as_bytes()).unwrap();
        for (value, ty) in read.params.iter_mut().zip(types) {
            *value = coerce(value.clone(), ty, "").unwrap();
        }
        let params = sent.params.iter().map(test_values::unkept).collect();
        prop_assert_eq!(read, Call { params, ..sent });
    }

    #[test]
    fn a_result_comes_back((ty, value) in test_values::typed(), which in 0..3_usize) {
        let call = call_of("VM.get_all", dialects()[which].clone());
        let text = answer(&call, &Ok(value.clone())).to_text();
        let result = outcome(&call, text.as_bytes()).unwrap().unwrap();
        prop_assert_eq!(coerce(result, ty, ""), Ok(test_values::unkept(&value)));
    }

    #[test]
    fn an_error_comes_back(
        code in "[A-Z_]{1,20}",
        params in prop::collection::vec(texts(), 0..4),
        which in 0..3_usize,
    ) {
        let call = call_of("VM.start", dialects()[which].clone());
        let error = ApiError::new(code, params);
        let text = answer(&call, &Err(error.clone())).to_text();
        prop_assert_eq!(outcome(&call, text.as_bytes()), Ok(Err(error)));
    }
}
