// Runs jsforce's streaming client against a Streaming API server.
//   node jsforce_client.cjs URL TOKEN CHANNEL REPLAY COUNT
// Prints each event's replay id on a line, and exits after COUNT events.
const jsforce = require('jsforce');
const { StreamingExtension } = require('jsforce/lib/api/streaming');
const [url, token, channel, replay, count] = process.argv.slice(2);
const connection = new jsforce.Connection({ instanceUrl: url, accessToken: token, version: '60.0' });
const client = connection.streaming.createClient([
  new StreamingExtension.Replay(channel, Number(replay)),
]);
let seen = 0;
client.subscribe(channel, (data) => {
  console.log(data.event.replayId);
  if (++seen === Number(count)) process.exit(0);
}).then(() => console.error('subscribed'), (error) => { console.error(String(error)); process.exit(1); });
