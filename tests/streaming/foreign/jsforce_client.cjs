// jsforce's streaming client on a server of the Streaming API.
//   node jsforce_client.cjs URL TOKEN CHANNEL REPLAY COUNT
// Prints the replay id of each event as a line, and ends after COUNT of them.
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
