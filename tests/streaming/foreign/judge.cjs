// The CometD project's server for Node.js, with a small replay extension. Reads one command per
// line: "publish CHANNEL COUNT", or "goodbye", which disconnects all sessions. Prints its port,
// then a JSON list per command: the published replay ids.
const http = require('http');
const readline = require('readline');
const server = require('cometd-nodejs-server').createCometDServer({
  timeout: 5000,
  maxInterval: 3000,
});
const log = new Map();
const sessions = new Set();
let last = 100;

server.addListener('sessionAdded', (session) => sessions.add(session));
server.addListener('sessionRemoved', (session) => sessions.delete(session));
server.addExtension({
  incoming: (cometd, session, message, callback) => {
    if (message.channel === '/meta/subscribe' && message.ext && message.ext.replay) {
      const name = [].concat(message.subscription)[0];
      const position = message.ext.replay[name];
      if (position !== undefined && position !== -1) {
        const missed = (log.get(name) || []).filter((data) => data.event.replayId > position);
        missed.forEach((data) => session.deliver(null, name, data));
      }
    }
    callback(null, true);
  },
  outgoing: (cometd, sender, session, message, callback) => {
    if (message.channel === '/meta/handshake' && message.successful) {
      message.ext = { ...message.ext, replay: true };
    }
    callback(null, true);
  },
});

const web = http.createServer((request, response) => server.handle(request, response));
web.listen(0, '127.0.0.1', () => console.log(web.address().port));
readline.createInterface({ input: process.stdin }).on('line', (line) => {
  const [command, name, count] = line.split(' ');
  const ids = [];
  if (command === 'publish') {
    for (let i = 0; i < Number(count); i++) {
      last += 1 + (i % 3);
      const event = { createdDate: '2026-01-01T00:00:00.000Z', replayId: last };
      const data = { event, payload: `event ${last}` };
      log.set(name, [...(log.get(name) || []), data]);
      server.createServerChannel(name).publish(null, data);
      ids.push(last);
    }
  } else {
    sessions.forEach((session) => session.disconnect());
  }
  console.log(JSON.stringify(ids));
}).on('close', () => process.exit(0));
