// Runs faye's client against a Streaming API server.
//   node faye_client.cjs URL TOKEN CHANNEL REPLAY COUNT
// Prints each event's replay id on a line, and exits after COUNT events.
const faye = require('faye');
const [url, token, channel, replay, count] = process.argv.slice(2);
const client = new faye.Client(`${url}/cometd/67.0`);
client.setHeader('Authorization', `Bearer ${token}`);
client.disable('websocket');
let last = Number(replay);
client.addExtension({
  outgoing: (message, callback) => {
    if (message.channel === '/meta/subscribe') {
      message.ext = { ...message.ext, replay: { [channel]: last } };
    }
    callback(message);
  },
});
let seen = 0;
client.subscribe(channel, (data) => {
  last = data.event.replayId;
  console.log(last);
  if (++seen === Number(count)) client.disconnect().then(() => process.exit(0));
}).then(() => console.error('subscribed'), (error) => { console.error(error.message); process.exit(1); });
