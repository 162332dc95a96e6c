// faye's server, which has no replay. Reads "publish CHANNEL COUNT" lines. Prints its port, then a
// JSON list per command: the published replay ids.
const http = require('http');
const readline = require('readline');
const faye = require('faye');
const bayeux = new faye.NodeAdapter({ mount: '/cometd/67.0', timeout: 5 });
bayeux.addExtension({
  outgoing: (message, callback) => {
    if (message.channel === '/meta/handshake') message.ext = { replay: true };
    callback(message);
  },
});
const web = http.createServer();
bayeux.attach(web);
let last = 100;
web.listen(0, '127.0.0.1', () => console.log(web.address().port));
readline.createInterface({ input: process.stdin }).on('line', async (line) => {
  const [, name, count] = line.split(' ');
  const ids = [];
  for (let i = 0; i < Number(count); i++) {
    last += 1;
    const event = { createdDate: '2026-01-01T00:00:00.000Z', replayId: last };
    await bayeux.getClient().publish(name, { event, payload: `event ${last}` });
    ids.push(last);
  }
  console.log(JSON.stringify(ids));
}).on('close', () => process.exit(0));
