// Runs the CometD project's JavaScript client against a Streaming API server.
//   node cometd_client.cjs URL TOKEN CHANNEL REPLAY COUNT
// Prints each event's replay id on a line, and exits after COUNT events.
require('cometd-nodejs-client').adapt();
const { CometD } = require('cometd');
const [url, token, channel, replay, count] = process.argv.slice(2);
const cometd = new CometD();
cometd.configure({
  url: `${url}/cometd/67.0`,
  requestHeaders: { Authorization: `Bearer ${token}` },
  appendMessageTypeToURL: false,
});
cometd.unregisterTransport('websocket');
let last = Number(replay);
let seen = 0;
const listen = () => {
  cometd.subscribe(channel, (message) => {
    last = message.data.event.replayId;
    console.log(last);
    if (++seen === Number(count)) cometd.disconnect(() => process.exit(0));
  }, { ext: { replay: { [channel]: last } } }, (reply) => {
    if (!reply.successful) { console.error(JSON.stringify(reply)); process.exit(1); }
    console.error('subscribed');
  });
};
cometd.addListener('/meta/handshake', (reply) => {
  if (!reply.successful) { console.error(JSON.stringify(reply)); process.exit(1); }
  cometd.batch(listen);
});
cometd.handshake();
