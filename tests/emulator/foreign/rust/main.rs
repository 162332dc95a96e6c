//! Subscribes to a topic that has no events yet, publishes the payload in the file PAYLOAD, and
//! prints the payload bytes of the event that it receives. Environment variables contain the
//! emulator's address and the values of the call headers.

use std::{env, error::Error, fs};

use pb::pub_sub_client::PubSubClient;
use pb::{FetchRequest, ProducerEvent, PublishRequest, ReplayPreset, TopicRequest};
use tokio_stream::StreamExt;
use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig};
use tonic::Request;

mod pb {
    tonic::include_proto!("eventbus.v1");
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let authority = Certificate::from_pem(fs::read(env::var("CA_FILE")?)?);
    let channel = Channel::from_shared(format!("https://{}", env::var("PUBSUB")?))?
        .tls_config(ClientTlsConfig::new().ca_certificate(authority))?
        .connect()
        .await?;
    let headers = [
        ("accesstoken", env::var("TOKEN")?.parse::<MetadataValue<_>>()?),
        ("instanceurl", env::var("INSTANCE")?.parse()?),
        ("tenantid", env::var("TENANT")?.parse()?),
    ];
    let mut client = PubSubClient::with_interceptor(channel, move |mut request: Request<()>| {
        for (name, value) in &headers {
            request.metadata_mut().insert(*name, value.clone());
        }
        Ok(request)
    });

    let topic_name = env::var("TOPIC")?;
    let asked = TopicRequest { topic_name: topic_name.clone() };
    let schema_id = client.get_topic(asked).await?.into_inner().schema_id;

    let first = FetchRequest {
        topic_name: topic_name.clone(),
        replay_preset: ReplayPreset::Earliest.into(),
        num_requested: 100,
        ..Default::default()
    };
    // The request stream must stay open, because its end would end the subscription.
    let requests = tokio_stream::once(first).chain(tokio_stream::pending());
    let mut responses = client.subscribe(requests).await?.into_inner();

    let payload = fs::read(env::var("PAYLOAD")?)?;
    let event = ProducerEvent { schema_id, payload, ..Default::default() };
    let publish = PublishRequest { topic_name, events: vec![event], ..Default::default() };
    client.publish(publish).await?;

    while let Some(response) = responses.message().await? {
        if let Some(received) = response.events.into_iter().find_map(|item| item.event) {
            println!("{:?}", received.payload);
            break;
        }
    }
    Ok(())
}
