//! Addresses of verbs contexts at addresses of IPv6.

use std::net::Ipv6Addr;

use ringbell_roce::verbs::{
    Context, ContextConfig, Modify, ProtectionDomain, QpAttributes, QpLimits, QueuePair, Rights,
    Rtr, Service, VerbsError,
};

struct End {
    qp: QueuePair,
    pd: ProtectionDomain,
    context: Context,
}

impl End {
    fn new(context: Context) -> End {
        let pd = context.alloc_pd().expect("a domain");
        let cq = context.create_cq(16, None).expect("a queue");
        let qp = pd.create_qp(&QpAttributes {
            service: Service::Connected,
            send_cq: &cq,
            receive_cq: &cq,
            shared: None,
            limits: QpLimits::default(),
            signal_all: false,
        });
        End {
            qp: qp.expect("a queue pair"),
            pd,
            context,
        }
    }
}

#[test]
fn a_context_of_ipv6_has_its_address_as_gid_and_reaches_none_of_ipv4() {
    let config = ContextConfig {
        address: Ipv6Addr::LOCALHOST.into(),
        ..ContextConfig::default()
    };
    let v6 = match Context::open(&config) {
        Ok(context) => End::new(context),
        Err(e) => {
            eprintln!("SKIPPED: no IPv6 here: {e}");
            return;
        }
    };
    let v4 = End::new(Context::open(&ContextConfig::default()).expect("a socket"));
    let gid = v6.context.gid();
    let (at, _) = gid.endpoint().expect("its own");
    assert_eq!(at.ip(), Ipv6Addr::LOCALHOST);
    for (from, to) in [(&v4, &v6), (&v6, &v4)] {
        from.qp.modify(Modify::Init(Rights::ALL)).expect("INIT");
        let rtr = Rtr {
            peer: to.context.gid(),
            number: 17,
            expected: 0,
            mtu: 1024,
            resources: 1,
            rnr_timer: 1,
        };
        let refused = from.qp.modify(Modify::Rtr(rtr));
        assert!(matches!(refused, Err(VerbsError::Address { .. })));
        let refused = from.pd.create_ah(to.context.gid());
        assert!(matches!(refused, Err(VerbsError::Address { .. })));
    }
    // A GID that is the address alone names no other port.
    for address in ["2001:db8::7", "fd00::7"] {
        let open = |port| {
            let address = address.parse().expect("an address");
            Context::open(&ContextConfig {
                address,
                port,
                ..config.clone()
            })
        };
        let refused = open(5_000).expect_err("no port").to_string();
        assert!(refused.contains("4791 alone, not 5000"), "{refused}");
        let refused = open(0).expect_err("no address of this host").to_string();
        assert!(refused.contains("]:4791"), "{refused}");
    }
}
